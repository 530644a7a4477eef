"""Running CPU kernels as another instruction set would have them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from octavo_kernels.cpu import activations, build, library, packing
from octavo_kernels.device import cpu_flags

RUNNABLE = tuple(variant.name for variant in library.usable(cpu_flags()))
VARIANTS = [
    pytest.param(
        variant.name,
        marks=() if variant.name in RUNNABLE else pytest.mark.skip(f"this CPU cannot run {variant.name} kernels"),
    )
    for variant in build.variants()
]


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
    for cached in (library.load, library.why_unavailable, packing.lanes, activations.fastest):
        cached.cache_clear()
