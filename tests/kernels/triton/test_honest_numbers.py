"""The interpreter computes as a GPU does once corrected, and would not have otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from tests.kernels.triton.arithmetic import PROBES, is_right

WRONG_IN_EVERY_VERSION = {
    "every_fp8_code_to_float32",
    "float32_to_fp8",
    "float32_to_bfloat16",
    "bfloat16_arithmetic",
    "dot_of_bfloat16",
    "scaled_dot_of_nvfp4",
}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_the_corrected_interpreter_agrees_with_torch(probe: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    if not is_right(probe):
        have, want = probe()
        pytest.fail(f"got {have.flatten()[:8]}, needed {want.flatten()[:8]}")


@pytest.mark.slow
def test_the_interpreter_by_itself_is_wrong_so_the_corrections_are_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.triton.arithmetic"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rights = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, right in rights.items() if not right} >= WRONG_IN_EVERY_VERSION
