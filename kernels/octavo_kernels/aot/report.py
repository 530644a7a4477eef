"""The matrix as a table for people and as JSON for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from octavo_kernels.aot.limits import KIB
from octavo_kernels.aot.results import Measured, Outcome, Result
from octavo_kernels.triton.aot_case import Architecture

PLAIN_WIDTH = 190
"""Columns where the output is no terminal: a row is a line."""
FAMILIES = (
    ("tcgen05", "block_scale", "tcgen05 fp4"),
    ("mma.sync", "block_scale", "mma fp4"),
    ("tcgen05", "", "tcgen05"),
    ("wgmma", "", "wgmma"),
    ("mma.sync", "", "mma"),
)


def family(measured: Measured) -> str:
    """The best family of matrix instructions that a kernel uses, for a table's cell; empty for none."""
    for instruction, detail, name in FAMILIES:
        if any(instruction in found and detail in found for found in measured.matrix):
            return name
    return ""


def print_tables(results: Sequence[Result], architectures: Sequence[Architecture], console: Console) -> None:
    """A table per version of Triton with a row per case and a column per architecture; then what fails and why."""
    for version in sorted({result.triton for result in results}):
        cells = {(result.case, result.architecture): result for result in results if result.triton == version}
        table = Table(title=f"Triton {version}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("registers, shared KiB, matrix instruction", no_wrap=True)
        for architecture in architectures:
            table.add_column(f"sm_{architecture}", no_wrap=True)
        for case in dict.fromkeys(name for name, _ in cells):
            table.add_row(case, *(_cell(cells.get((case, architecture))) for architecture in architectures))
        console.print(table)
    for result in results:
        for problem in result.problems:
            console.print(
                Text(f"{result.case} sm_{result.architecture} Triton {result.triton}: {problem}", style="red")
            )
    for reason, count in Counter(result.why_not for result in results if result.why_not).most_common():
        console.print(Text(f"- {reason} ({count} of the cells)", style="dim"))


def summary(results: Sequence[Result], seconds: float, cpu_seconds: float) -> str:
    """One line."""
    count = Counter(result.outcome for result in results)
    cached = sum(result.cached for result in results)
    outcomes = ", ".join(f"{count[outcome]} {outcome}" for outcome in Outcome)
    return f"{outcomes}; {cached} from the cache; {seconds:.0f} s, {cpu_seconds:.0f} s of processor time"


def as_json(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """The whole matrix: {"name", "seconds", "results": [...]}, with `Result`'s and `Measured`'s field names."""
    return {"name": "aot", "seconds": round(seconds, 1), "results": [result.as_json() for result in results]}


def _cell(result: Result | None) -> Text:
    if result is None:
        return Text("")
    if result.outcome is Outcome.REFUSED:
        return Text("-", style="dim")
    measured = result.measured
    if measured is None or measured.error is not None:
        return Text("no", style="red")
    text = f"{measured.registers}r {measured.shared_bytes / KIB:.0f}K {family(measured)}".rstrip()
    if measured.stack_bytes:
        text += f" {measured.stack_bytes}B spilled"
    return Text(text, style="red" if result.problems else "")
