"""Each gate of the ahead-of-time matrix goes red for the fault that it is there for, and for nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PLANTED = "tests.kernels.aot.planted"


def _aot(cache: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    file = cache / "aot.json"
    done = subprocess.run(
        [sys.executable, "-m", "octavo_kernels.aot", "--module", PLANTED, "--json", str(file), *arguments],
        env={**os.environ, "OCTAVO_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    results = json.loads(file.read_text())["results"] if file.exists() else []
    return done, results


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that no other run knows."""
    return tmp_path_factory.mktemp("aot")


@pytest.fixture(scope="module")
def planted(cache: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]]:
    """The run over the planted faults, and its result of each where it was compiled."""
    done, results = _aot(cache, "--triton", "installed", "--arch", "80", "--arch", "89", "--arch", "90")
    return done, {result["case"]: result for result in results if result["outcome"] != "refused"}


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("spills", "bytes of stack per thread"),
        ("too many registers", "registers, needed at most 10"),
        ("too much shared memory", "KiB of shared memory, a block has at most 99"),
        ("wrong instruction", "no matrix instruction with 'wgmma', found mma.sync"),
        ("no such type", "does not compile: CompilationError"),
        ("crash", "does not compile: the compiler's process ended with 7"),
    ],
)
def test_a_planted_fault_turns_its_gate_red(
    planted: tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]], case: str, sentence: str
) -> None:
    done, results = planted
    assert results[case]["outcome"] == "failed"
    (problem,) = results[case]["problems"]
    assert sentence in problem
    assert done.returncode == 1
    assert sentence in done.stdout


def test_a_healthy_kernel_is_green_and_its_resources_are_reported(
    planted: tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]],
) -> None:
    _, results = planted
    assert results["healthy"]["outcome"] == "compiled"
    measured = results["healthy"]["measured"]
    assert measured["target"] == "sm_90a"
    assert measured["registers"] > 16
    assert measured["shared_bytes"] > 0
    assert measured["warps"] == 4


def test_a_second_run_compiles_nothing_again_but_what_broke_the_compiler(
    planted: tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]], cache: Path
) -> None:
    first = planted[1]
    done, results = _aot(cache, "--triton", "installed", "--arch", "80", "--arch", "89", "--arch", "90")
    again = {result["case"]: result for result in results if result["outcome"] != "refused"}
    assert {case for case, result in again.items() if not result["cached"]} == {"crash"}
    assert all(again[case]["measured"] == first[case]["measured"] for case in first if case != "crash")
    assert done.returncode == 1


def test_a_green_matrix_exits_with_zero(cache: Path) -> None:
    done, results = _aot(cache, "--triton", "installed", "--arch", "90", "--filter", "healthy")
    assert done.returncode == 0
    assert [result["outcome"] for result in results] == ["compiled"]


def test_a_triton_that_cannot_be_fetched_is_said_in_one_line(cache: Path) -> None:
    done, _ = _aot(cache, "--triton", "0.0.1")
    assert done.returncode == 2
    assert "Triton 0.0.1 cannot be fetched" in done.stderr
    assert "Traceback" not in done.stderr
