"""How many blocks of a compiled kernel fit on one multiprocessor, and what stops the next one. Pure arithmetic.

Source of the rules: NVIDIA, CUDA C++ Best Practices Guide, "Occupancy"; register granularity as in NVIDIA's occupancy
calculator.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_kernels.aot.limits import (
    LIMITS,
    REGISTERS,
    REGISTERS_AT_ONCE,
    RESERVED_SHARED_BYTES,
    TENSOR_MEMORY_COLUMNS,
)
from octavo_kernels.aot.results import Measured
from octavo_kernels.triton.aot_case import Architecture

WARP = 32


@dataclass(frozen=True)
class Occupancy:
    """Of one kernel on one multiprocessor."""

    blocks: int
    warps: int
    of_warps: int
    """How many warps a multiprocessor holds at most."""
    bound_by: str
    """registers, shared memory, tensor memory, warps or blocks: what the next block would lack."""

    @property
    def share(self) -> float:
        """Warps in flight of those possible."""
        return self.warps / self.of_warps


def occupancy(measured: Measured, architecture: Architecture) -> Occupancy:
    """Blocks that fit by registers, shared memory, tensor memory, warp slots and block slots; the least decides."""
    limits = LIMITS[architecture]
    per_warp = -(-measured.registers * WARP // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    fits = {
        "registers": REGISTERS // per_warp // measured.warps,
        "shared memory": limits.shared_bytes // (measured.shared_bytes + RESERVED_SHARED_BYTES),
        "warps": limits.warps // measured.warps,
        "blocks": limits.blocks,
    }
    if measured.tensor_columns:
        fits["tensor memory"] = TENSOR_MEMORY_COLUMNS // measured.tensor_columns
    bound_by = min(fits, key=lambda name: fits[name])
    blocks = fits[bound_by]
    return Occupancy(blocks, blocks * measured.warps, limits.warps, bound_by)
