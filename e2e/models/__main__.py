"""``python -m e2e.models train | evaluate | verify``: make, measure and check the tiny MoE."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .recipe import CHECKPOINT_DIR, PINNED_SHA256, sha256_of


class UsageError(Exception):
    """A command-line value that cannot be used; the message names the option, the value and what would do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; user errors end in one line and exit status 1."""
    parser = argparse.ArgumentParser(prog="python -m e2e.models", description="The tiny mixture of experts.")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="fetch the text, train, write the checkpoint")
    training.add_argument("--minutes", type=float, default=60.0, help="wall-clock budget (default 60)")
    training.add_argument("--workers", type=int, default=2, help="processes, one core each (default 2)")
    training.add_argument("--work", type=Path, help="state and log; an interrupted run goes on from here")
    training.add_argument("--output", type=Path, help="checkpoint folder (default: WORK/tiny-moe)")
    measuring = commands.add_parser("evaluate", help="perplexity, INT4 damage, recall, sample answers")
    measuring.add_argument("path", type=Path, nargs="?", default=CHECKPOINT_DIR)
    measuring.add_argument("--needles", type=int, default=32, help="prompts per length and form (default 32)")
    commands.add_parser("verify", help="compare the committed checkpoint with the pinned hashes")
    options = parser.parse_args(arguments)
    try:
        return {"train": _train, "evaluate": _evaluate, "verify": _verify}[options.command](options)
    except _user_errors() as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _user_errors() -> tuple[type[Exception], ...]:
    from .checkpoint import CheckpointError
    from .corpus import CorpusError

    return CheckpointError, CorpusError, UsageError


def _train(arguments: argparse.Namespace) -> int:
    import torch

    from . import checkpoint, corpus
    from .model import TinyMoe
    from .recipe import ModelShape, Schedule
    from .train import Run, train

    most = Schedule().most_workers
    if arguments.minutes <= 0:
        raise UsageError(f"--minutes {arguments.minutes:g}: needs to be above 0")
    if not 1 <= arguments.workers <= most:
        raise UsageError(f"--workers {arguments.workers}: from 1 to {most}, so that each has a whole sequence a step")
    cache = Path(os.environ.get("OCTAVO_CACHE", "~/.cache/octavo")).expanduser() / "models"
    work = (arguments.work or cache / "tiny-moe-work").absolute()
    output = arguments.output or work / "tiny-moe"
    sources = corpus.fetch(cache)
    print(f"training for at most {arguments.minutes:g} minutes; an interrupted run goes on from {work}", flush=True)
    state_file = train(Run(sources, work, arguments.minutes, arguments.workers))
    model = TinyMoe(ModelShape())
    model.load_state_dict(torch.load(state_file, weights_only=True)["model"])
    checkpoint.save(model, work / "tokenizer.json", corpus.read(sources).held_out, output)
    print(f"checkpoint: {output}\nmeasure it: python -m e2e.models evaluate {output}")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from .evaluate import evaluate

    if arguments.needles < 1:
        raise UsageError(f"--needles {arguments.needles}: needs to be at least 1")
    started = time.monotonic()
    figures = evaluate(arguments.path, arguments.needles)
    figures["seconds"] = round(time.monotonic() - started, 1)
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs"
    print(json.dumps({"name": "tiny-moe", "machine": machine, "figures": figures}))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    wrong = 0
    for name, pinned in PINNED_SHA256.items():
        path = CHECKPOINT_DIR / name
        seen = sha256_of(path) if path.is_file() else "missing"
        good = seen == pinned
        wrong += not good
        print(f"{'ok   ' if good else 'WRONG'} {name}  {seen}" + ("" if good else f"  (pinned: {pinned})"))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
