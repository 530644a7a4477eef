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
from typing import TYPE_CHECKING, NoReturn

from octavo_runtime.contract.container import TERMINATION_LOG
from octavo_runtime.contract.refused import Refused

if TYPE_CHECKING:
    from octavo_runtime.contract.termination import TerminationReport

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


class _Parser(argparse.ArgumentParser):
    """A wrong flag is an input that cannot work, like any other."""

    def error(self, message: str) -> NoReturn:
        """Raise Refused instead of printing the whole usage."""
        raise Refused("FlagInvalid", f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        args = _parse(arguments, chosen)
        result: int = importlib.import_module(f"octavo_runtime.cli.{args.command}").run(args)
    except Refused as refused:
        from octavo_runtime.contract.termination import ExitCode, report_of  # pydantic: not for `octavo drain`

        program = f"octavo {chosen}" if chosen in COMMANDS else "octavo"
        print(f"{program}: {refused.reason}: {refused.message}", file=sys.stderr)
        leave_last_word(report_of(refused))
        return ExitCode.REFUSED
    return result


def _parse(arguments: list[str], chosen: str | None) -> argparse.Namespace:
    """Only the chosen command's module is imported."""
    parser = _Parser(prog="octavo", description="Octavo's inference runtime.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == chosen:
            importlib.import_module(f"octavo_runtime.cli.{name}").add_arguments(command)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
