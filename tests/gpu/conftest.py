"""Tests on a real CUDA device: `python -m tests.gpu`. Without one nothing here is collected.

`OCTAVO_REHEARSE_GPU=1 TRITON_INTERPRET=1 pytest tests/gpu` collects and runs on the CPU what can run there, to find
mistakes in the tests themselves before a GPU is at hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_kernels.triton.aot_case import Architecture
from tests.gpu.on_device import OnDevice

REHEARSED = os.environ.get("OCTAVO_REHEARSE_GPU") == "1" and os.environ.get("TRITON_INTERPRET") == "1"
AVAILABLE = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
DEADLINE = os.environ.get("OCTAVO_GPU_CHECK_DEADLINE")
"""Seconds since the epoch."""
DEVICE = torch.device("cuda" if AVAILABLE else "cpu")
MODE = OnDevice(DEVICE)

collect_ignore_glob = [] if AVAILABLE or REHEARSED else ["*"]

SAME_TESTS = "test_same_as_interpreted.py"
INTERPRETED = Path(__file__).parents[1] / "kernels" / "triton"
ABOUT_THE_INTERPRETER = {"test_honest_numbers.py", "test_guarded_memory.py"}

if AVAILABLE:
    from octavo_kernels.triton.architecture import architecture_of
    from octavo_kernels.triton.experts import TritonExperts
    from octavo_kernels.triton.experts_tiles import has_fp8, has_nvfp4
    from octavo_kernels.triton.quantised_linear import TritonQuantisedLinear

if REHEARSED:
    from tests.kernels.triton import guarded_memory, honest_numbers

    honest_numbers.install()
    guarded_memory.install()


class ModuleOnDevice(pytest.Module):
    """A module of tests whose constants are made on the device too."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Import it and find its tests."""
        with MODE:
            return list(super().collect())


class SameTests(pytest.File):
    """The interpreter's tests of kernels, once more, here."""

    def collect(self) -> Iterator[pytest.Collector]:
        """One module per file of theirs."""
        for path in sorted(INTERPRETED.glob("test_*.py")):
            if path.name not in ABOUT_THE_INTERPRETER:
                yield ModuleOnDevice.from_parent(self, path=path)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Put the interpreter's tests in the place of the file that stands for them."""
    if module_path.name == SAME_TESTS:
        same: pytest.Collector = SameTests.from_parent(parent, path=module_path)
        return same
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the device."""
    for item in items:
        if "tests/gpu" in item.nodeid or item.getparent(SameTests) is not None:
            item.add_marker(pytest.mark.gpu)
    # What only a GPU can show comes first, in case the time is up before the end.
    items.sort(key=lambda item: item.getparent(SameTests) is not None)


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    """Tensors are made on the device unless a test says otherwise; what does not fit into the time is left out."""
    if DEADLINE and time.time() > float(DEADLINE):
        pytest.skip("LEFT OUT: the time of gpu-check is up")
    with MODE:
        yield


@pytest.fixture(autouse=True)
def only_what_the_device_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that ask for another generation's arithmetic are skipped where the device lacks it."""
    if not AVAILABLE:
        return
    here = architecture_of(torch.empty(0, device=DEVICE))
    for kernel in (TritonExperts, TritonQuantisedLinear):
        monkeypatch.setattr(kernel, "apply", _skipping(kernel.apply, here))


def _skipping(apply: Callable[..., torch.Tensor], here: Architecture) -> Callable[..., torch.Tensor]:
    def apply_or_skip(kernel: Any, *arguments: Any) -> torch.Tensor:
        asked = kernel._architecture or here
        for arithmetic, has in (("e4m3", has_fp8), ("block-scaled e2m1", has_nvfp4)):
            if has(asked) and not has(here):
                pytest.skip(f"tensor cores of {here / 10} do not multiply {arithmetic}")
        return apply(kernel, *arguments)

    return apply_or_skip


@pytest.fixture
def device() -> torch.device:
    """Where kernels run."""
    return DEVICE
