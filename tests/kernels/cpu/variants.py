"""Running CPU kernels as another instruction set would have them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from octavo_kernels.cpu import activations, experts, library, packing
from octavo_kernels.device import cpu_flags

RUNNABLE = tuple(variant.name for variant in library.usable(cpu_flags()))
VARIANTS = [
    pytest.param(RUNNABLE[0]),
    *(pytest.param(name, marks=pytest.mark.slow) for name in RUNNABLE[1:]),
]
"""The one that this CPU would take, and those that it could take, which `make check` leaves out. What it cannot run is
compiled, and skipped aloud, in `test_build.py`."""


@contextlib.contextmanager
def kernels_of(name: str) -> Iterator[None]:
    """Load this variant instead of the best one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.FORCE, name)
        forget_loaded()
        yield
    forget_loaded()


def forget_loaded() -> None:
    """Let the next call look for the kernels again."""
    for cached in (library.load, library.why_unavailable, packing.lanes, activations.fastest, experts._scratch_bytes):
        cached.cache_clear()
