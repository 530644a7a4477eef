"""What one ahead-of-time compilation of a kernel is, and what must be true of its result.

Each kernel's file has `AOT_CASES`, next to the launcher whose choices they repeat; `octavo_kernels.aot` compiles them
for every architecture without a GPU. This file imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import metadata

Architecture = int
"""Compute capability as one number: 80, 86, 89, 90, 100, 103, 120, 121."""

ARCHITECTURES: tuple[Architecture, ...] = (80, 86, 89, 90, 100, 103, 120, 121)
DISTINCT: tuple[Architecture, ...] = (80, 90, 100, 120)
"""Enough for a further size of a kernel that another case compiles everywhere: the four families of instructions, and
with 12.0 the least shared memory. Where both were compiled, 10.3 and 12.1 were within 8 registers of 10.0 and 12.0 with
the same shared memory."""


_assumed: ContextVar[str | None] = ContextVar("assumed Triton version", default=None)


def triton_version() -> tuple[int, ...]:
    """Major and minor number of the installed Triton, or of the one that a compilation assumes; (0, 0) without any.

    Not by importing it: the registry asks on machines without Triton, too.
    """
    try:
        found = _assumed.get() or metadata.version("triton")
    except metadata.PackageNotFoundError:
        return (0, 0)
    return tuple(int(part) for part in found.split(".")[:2])


@contextmanager
def assuming_triton(version: str) -> Iterator[None]:
    """Answer `why_not` as where this version of Triton is installed."""
    token = _assumed.set(version)
    try:
        yield
    finally:
        _assumed.reset(token)


def anywhere(_architecture: Architecture) -> str | None:
    """Nothing speaks against any architecture."""
    return None


@dataclass(frozen=True)
class AotCase:
    """One kernel with one set of compile-time values, as a launcher would start it."""

    name: str
    """Unique over all files, e.g. `paged_decode/fp8/d128/page64`."""
    kernel: object
    """The function decorated with `triton.jit`."""
    signature: Mapping[str, str]
    """Argument name to Triton type (`*bf16`, `*u8`, `i32`, `fp32`), for all but the constants."""
    constants: Mapping[str, object]
    """Argument name to `tl.constexpr` value."""
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int = 255
    """Ceiling per thread with some slack: counts move between Triton versions."""
    mma: Callable[[Architecture], str | None] = anywhere
    """Text that must occur among the matrix instructions of the PTX (`wgmma`, `tcgen05`, `block_scale`, `mma.sync`), or
    None where the kernel has no matrix product or any will do."""
    why_not: Callable[[Architecture], str | None] = anywhere
    """Why the registry would not start this kernel there, or None; such a pair is not compiled."""
    architectures: tuple[Architecture, ...] = ARCHITECTURES
    """Where it is compiled: everywhere, or DISTINCT."""
    unaligned: frozenset[str] = field(default_factory=frozenset)
    """Arguments that are not multiples of 16, all others being so: pointers in bytes, integers as they are. Integers
    that the kernel marks `do_not_specialize` are never taken to be."""
