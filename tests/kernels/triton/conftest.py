"""Kernels in Triton, run by its interpreter on the CPU: `TRITON_INTERPRET=1 pytest tests/kernels/triton`.

Triton reads the variable when it is imported and keeps to it, so these tests have a process of their own; without the
variable nothing here is collected. tests/gpu runs the same tests on a GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["*"]

if INTERPRETED:
    from tests.kernels.triton import guarded_memory, honest_numbers

    honest_numbers.install()
    guarded_memory.install()


@pytest.fixture
def device() -> torch.device:
    """Where the tensors of a kernel's test live: the CPU under the interpreter; tests/gpu says cuda."""
    return torch.device("cpu")
