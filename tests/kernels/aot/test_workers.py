"""Which process compiles what; no compiler runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from octavo_kernels.aot import matrix
from octavo_kernels.aot.matrix import Task
from octavo_kernels.aot.results import Measured, Result
from octavo_kernels.aot.versions import TritonVersion
from octavo_kernels.triton.aot_case import AotCase


class Recorder:
    """Stands for a compiler's process; remembers which architectures it was asked for."""

    asked: ClassVar[list[set[tuple[str, int]]]] = []

    def __init__(self, version: TritonVersion, modules: Sequence[str], scratch: Path) -> None:
        self.version = version.version
        self.mine: set[tuple[str, int]] = set()
        Recorder.asked.append(self.mine)

    def compile(self, task: Task) -> Measured:
        self.mine.add((self.version, task.architecture))
        return Measured(error="not compiled")

    def stop(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_a_process_compiles_with_one_triton_for_one_architecture(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 3.6 keeps, per process, what it decided about FP8 for the first architecture that needed it."""
    monkeypatch.setattr(matrix, "_Worker", Recorder)
    monkeypatch.setattr(
        matrix, "fingerprint", lambda case, architecture, version: f"{case.name} {architecture} {version}"
    )
    monkeypatch.setattr(Recorder, "asked", [])
    cases = [AotCase(f"case {number}", None, {}, {}) for number in range(3)]
    versions = [TritonVersion("3.6.0", None), TritonVersion("3.9.0", None)]
    tasks = [
        Task(case, architecture, version) for version in versions for case in cases for architecture in (80, 89, 90)
    ]
    results: list[Result] = []
    matrix.run(tasks, modules=(), cache=tmp_path, workers=workers, done=results.append)
    assert len(results) == len(tasks)
    assert all(len(asked) == 1 for asked in Recorder.asked)
