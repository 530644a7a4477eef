"""`octavo inspect`: what a checkpoint is and what it needs, within seconds, from config and tensor headers alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo_runtime.cli.facts_sheet import facts_sheet
from octavo_runtime.cli.hub_environment import prepare_hub_environment
from octavo_runtime.cli.main import leave_last_word
from octavo_runtime.contract.servable import check_servable
from octavo_runtime.contract.termination import ExitCode, TerminationReport
from octavo_runtime.loading.facts import Checkpoint, read_checkpoint
from octavo_runtime.loading.files import LocalFiles

HUB_SCHEME = "hf://"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="PATH|hf://REPO[@REVISION]", help="checkpoint directory, or hub repository")
    parser.add_argument("--json", action="store_true", help="print the facts as one JSON document (spec.model.facts)")
    parser.add_argument(
        "--servable",
        action="store_true",
        help="exit with a refusal when this version of the runtime cannot serve the model",
    )


def run(args: argparse.Namespace) -> int:
    """Print the facts; in a container they are also the last word, unless `--servable` refuses. Raises Refused."""
    checkpoint = _read(args.source)
    facts = checkpoint.facts
    if args.json:
        print(facts.model_dump_json(by_alias=True, exclude_none=True), flush=True)
    else:
        print(facts_sheet(facts, str(checkpoint.stored.packing)), flush=True)
    if args.servable:
        check_servable(facts)
    leave_last_word(TerminationReport(facts=facts))
    return ExitCode.OK


def _read(source: str) -> Checkpoint:
    if source.startswith(HUB_SCHEME):
        # Only here: the hub's client takes a third of a second to import, and reads its environment then.
        prepare_hub_environment()
        from octavo_runtime.loading.hub import HubFiles, HubSource

        files = HubFiles.open(HubSource.parse(source))
        return read_checkpoint(files, files.commit)
    return read_checkpoint(LocalFiles(Path(source)))
