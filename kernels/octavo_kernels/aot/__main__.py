"""Compile every Triton kernel for every GPU generation, with no GPU, and check what comes out.

python -m octavo_kernels.aot                                    # everything, on Triton 3.6.0 and the installed one
python -m octavo_kernels.aot --filter decode --arch 90 --triton installed
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Whoever runs the interpreter's tests in this shell still wants a compiler here; read when triton is imported.
os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from octavo_kernels.aot.cases import kernel_modules, load_cases
from octavo_kernels.aot.matrix import WorkerBroken, run, tasks_and_refusals
from octavo_kernels.aot.report import PLAIN_WIDTH, as_json, print_tables, summary
from octavo_kernels.aot.results import Outcome, Result
from octavo_kernels.aot.versions import INSTALLED, TritonUnavailable, cache_folder, triton_version
from octavo_kernels.triton.aot_case import ARCHITECTURES

OLDEST = "3.6.0"
"""The oldest Triton that kernels must compile on: GPU machines in use run it with torch 2.11."""
PLAIN_PROGRESS_SECONDS = 15


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every gate is green, 1 when one is red, 2 when the matrix could not be run."""
    args = _parser().parse_args(argv)
    started = time.monotonic()
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    try:
        versions = list(dict.fromkeys(triton_version(wanted) for wanted in args.triton or (OLDEST, INSTALLED)))
        modules = args.module or kernel_modules()
        cases = {name: case for name, case in load_cases(modules).items() if args.filter in name}
        if not cases:
            print(f"octavo_kernels.aot: no case has {args.filter!r} in its name", file=sys.stderr)
            return 2
        architectures = tuple(args.arch or ARCHITECTURES)
        tasks, results = tasks_and_refusals(cases, architectures, versions)
        with _progress() as progress:
            bar = progress.add_task("compiling", total=len(tasks))
            quiet = _PlainProgress(len(tasks), enabled=progress.disable)

            def done(result: Result) -> None:
                results.append(result)
                progress.advance(bar)
                quiet.advance(result)

            run(tasks, modules=modules, cache=cache_folder() / "aot", workers=args.workers, done=done)
    except (TritonUnavailable, WorkerBroken, ValueError) as error:
        print(f"octavo_kernels.aot: {error}", file=sys.stderr)
        return 2
    order = {name: index for index, name in enumerate(cases)}
    results.sort(key=lambda result: (result.triton, order[result.case], result.architecture))
    seconds = time.monotonic() - started
    # Of this process and all that it has waited for; on a busy machine it says more than the clock.
    cpu_seconds = sum(os.times()[:4])
    print_tables(results, architectures, console)
    console.print(summary(results, seconds, cpu_seconds))
    if args.json:
        args.json.write_text(json.dumps(as_json(results, seconds), indent=1) + "\n")
    return 1 if any(result.outcome is Outcome.FAILED for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m octavo_kernels.aot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only cases with this in their name")
    parser.add_argument(
        "--arch", type=int, action="append", choices=ARCHITECTURES, help="only this compute capability; repeatable"
    )
    parser.add_argument(
        "--triton", action="append", metavar="VERSION", help=f"{INSTALLED} or e.g. {OLDEST}; repeatable (default: both)"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time (default: cores)")
    parser.add_argument(
        "--module", action="append", metavar="NAME", help="where AOT_CASES are (default: all of octavo_kernels.triton)"
    )
    return parser


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


class _PlainProgress:
    """A line now and then where a bar cannot move."""

    def __init__(self, total: int, *, enabled: bool) -> None:
        self._total, self._enabled = total, enabled
        self._count, self._next = 0, time.monotonic() + PLAIN_PROGRESS_SECONDS

    def advance(self, result: Result) -> None:
        self._count += 1
        if self._enabled and time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_PROGRESS_SECONDS
            print(f"{self._count} of {self._total}, last {result.case} sm_{result.architecture}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
