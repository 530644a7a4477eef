"""`octavo`: one program, a module per command, imported only when it is called (`octavo drain` starts without torch).

A command module has `add_arguments(parser)` and `run(args) -> int`. A `Refused` becomes one line on stderr, the same
reason in the termination log when the container has one, and exit code 3; no traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo_runtime.contract.launch import TERMINATION_LOG
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.termination import ExitCode, TerminationReport, report_of

COMMANDS = {
    "serve": "serve a checkpoint over an OpenAI-compatible HTTP API",
    "inspect": "print what a checkpoint is and needs, from its config and tensor headers",
    "fetch": "copy a checkpoint from a hub into a directory",
    "drain": "tell the server on this host to finish its requests and stop taking new ones",
}

TERMINATION_LOG_VARIABLE = "OCTAVO_TERMINATION_LOG"


def leave_last_word(report: TerminationReport) -> None:
    """Write `report` to the container's termination log; outside a container there is none and nothing is written."""
    path = Path(os.environ.get(TERMINATION_LOG_VARIABLE, TERMINATION_LOG))
    if path.exists() and os.access(path, os.W_OK):
        path.write_text(report.to_json(), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="octavo", description="Octavo's inference runtime.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if name == chosen:
            importlib.import_module(f"octavo_runtime.cli.{name}").add_arguments(command)
    args = parser.parse_args(arguments)
    try:
        result: int = importlib.import_module(f"octavo_runtime.cli.{args.command}").run(args)
    except Refused as refused:
        print(f"octavo {args.command}: {refused.reason}: {refused.message}", file=sys.stderr)
        leave_last_word(report_of(refused))
        return ExitCode.REFUSED
    return result


if __name__ == "__main__":
    sys.exit(main())
