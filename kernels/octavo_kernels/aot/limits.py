"""What one multiprocessor of each generation has.

Source: NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; for tensor memory the
PTX ISA manual, "Tensor Memory". Published, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_kernels.triton.aot_case import Architecture

KIB = 1024
REGISTERS = 65536
"""32-bit registers of a multiprocessor, of every generation from 8.0 on."""
REGISTERS_AT_ONCE = 256
"""They are given to a warp in multiples of this."""
RESERVED_SHARED_BYTES = 1 * KIB
"""Shared memory that the driver keeps per block, from 8.0 on."""
TENSOR_MEMORY_COLUMNS = 512
"""Of 10.x."""


@dataclass(frozen=True)
class Limits:
    """Of one multiprocessor."""

    shared_bytes: int
    """Shared memory of all blocks together."""
    warps: int
    blocks: int

    @property
    def shared_bytes_per_block(self) -> int:
        """The most that one block may ask for."""
        return self.shared_bytes - RESERVED_SHARED_BYTES


_CONSUMER = Limits(shared_bytes=100 * KIB, warps=48, blocks=24)
_DATA_CENTRE = Limits(shared_bytes=228 * KIB, warps=64, blocks=32)
LIMITS: dict[Architecture, Limits] = {
    80: Limits(shared_bytes=164 * KIB, warps=64, blocks=32),
    86: Limits(shared_bytes=100 * KIB, warps=48, blocks=16),
    89: _CONSUMER,
    90: _DATA_CENTRE,
    100: _DATA_CENTRE,
    103: _DATA_CENTRE,
    120: _CONSUMER,
    121: _CONSUMER,
}
