"""What must be true of a compiled kernel. Pure: from a case and what was measured to sentences about what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from octavo_kernels.aot.limits import KIB, LIMITS
from octavo_kernels.aot.results import Measured
from octavo_kernels.triton.aot_case import AotCase, Architecture


def problems(case: AotCase, architecture: Architecture, measured: Measured) -> tuple[str, ...]:
    """Every gate that is red, as a sentence naming what was seen and what is needed; empty when all are green."""
    if measured.error is not None:
        return (f"does not compile: {measured.error}",)
    return tuple(_problems(case, architecture, measured))


def _problems(case: AotCase, architecture: Architecture, measured: Measured) -> Iterator[str]:
    if measured.stack_bytes:
        yield f"spills: {measured.stack_bytes} bytes of stack per thread, needed 0"
    if measured.registers > case.max_registers:
        yield f"{measured.registers} registers, needed at most {case.max_registers}"
    most = LIMITS[architecture].shared_bytes_per_block
    if measured.shared_bytes > most:
        yield f"{measured.shared_bytes / KIB:.1f} KiB of shared memory, a block has at most {most // KIB}"
    wanted = case.mma(architecture)
    if wanted is not None and not any(wanted in instruction for instruction in measured.matrix):
        found = ", ".join(measured.matrix) or "none"
        yield f"no matrix instruction with {wanted!r}, found {found}"
