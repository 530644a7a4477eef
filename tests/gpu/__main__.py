"""`python -m tests.gpu`: every check and figure that needs a CUDA device, in one command of at most eight minutes.

Runs in any environment with torch, Triton, pytest and hypothesis; torch 2.11 with Triton 3.6 is the oldest pair. Ends
with 0 only when tests ran and passed: a check that did not run is no pass.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEEDED = ("torch", "triton", "pytest", "hypothesis", "numpy")
BUDGET_SECONDS = 460
BENCHMARK_SECONDS = 150
LAST_TEST_SECONDS = 30
"""Kept for the test that is running when the tests' time is up."""
MOST_PROCESSES = 8
"""That compile at a time, where pytest-xdist is installed; they share the one device."""


def main() -> int:
    """0 when all tests passed and the benchmark ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--no-benchmark", action="store_true", help="tests only")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only tests that match, as in pytest")
    args = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _nothing_ran(f"not installed: {', '.join(missing)}")
    device = _device()
    if device is None:
        return _nothing_ran("torch sees no CUDA device")
    print(f"{device}; " + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton")))
    deadline = time.monotonic() + BUDGET_SECONDS
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = [str(ROOT / "kernels"), str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    left = BUDGET_SECONDS - (0 if args.no_benchmark else BENCHMARK_SECONDS)
    environment |= {
        "PYTHONPATH": os.pathsep.join(path),
        "TRITON_DEFAULT_FP_FUSION": "1",
        "OCTAVO_GPU_CHECK_DEADLINE": str(time.time() + left - LAST_TEST_SECONDS),
    }
    options = ["-k", args.k] if args.k else []
    if importlib.util.find_spec("xdist"):
        options += ["-n", str(min(MOST_PROCESSES, os.cpu_count() or 1))]
    tests = ["-m", "pytest", "-q", "-c", "tests/gpu/pytest.ini", "--rootdir", ".", "--durations=10", *options]
    code = _run([*tests, "tests/gpu"], environment, left)
    if not args.no_benchmark:
        print("benchmark:")
        code = _run(["-m", "benchmarks.gpu_kernels"], environment, deadline - time.monotonic()) or code
    return code


def _run(arguments: list[str], environment: dict[str, str], seconds: float) -> int:
    try:
        return subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, timeout=max(10.0, seconds), check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"gpu-check: stopped after {seconds:.0f} s: {' '.join(arguments)}", file=sys.stderr)
        return 1


def _device() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"compute capability {major}.{minor}, {memory:.0f} GiB"


def _nothing_ran(why: str) -> int:
    print(f"gpu-check: NOTHING RAN: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
