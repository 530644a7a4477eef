"""Tiles of the grouped products: a pure function of architecture, format and tokens per expert.

In every product here the weights are the left operand and the tokens the right one. A tensor core's instruction is 64
or 128 rows tall but only 8 or 16 columns wide, so a step with few tokens per expert wastes nothing, a dequantised tile
feeds the Hopper instruction from registers, and the same tile suits the block-scaled instruction of 10.x, which knows
only 128 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from octavo_kernels.errors import KernelInputError
from octavo_kernels.triton.aot_case import ARCHITECTURES, Architecture, triton_version


class Arithmetic(StrEnum):
    """What a product does with the weights as they are stored."""

    BF16 = "bf16"
    INT4 = "int4"
    """Unpacked to bfloat16 in registers."""
    FP8 = "fp8"
    """e4m3 times e4m3, activations quantised in runs of 128."""
    FP8_AS_BF16 = "fp8_as_bf16"
    """e4m3 widened to bfloat16 in registers."""
    NVFP4 = "nvfp4"
    """e2m1 times e2m1 with block scales: W4A4, activations quantised in blocks of 16 with the weight's input scale."""
    NVFP4_AS_BF16 = "nvfp4_as_bf16"
    """e2m1 widened to bfloat16 in registers."""


@dataclass(frozen=True)
class Tile:
    """Extent of one program's product and how it runs."""

    rows: int
    """Weight rows: gate and up rows both, where they are fused."""
    tokens: int
    depth: int
    """Inputs of one step of the loop; a multiple of an INT4 group or the other way round."""
    warps: int
    stages: int


ROWS_DIVIDE = 128
"""Stored matrices are padded to a multiple of so many rows, so that no load needs a mask."""

UNPACKED = frozenset({Arithmetic.INT4, Arithmetic.FP8_AS_BF16, Arithmetic.NVFP4_AS_BF16})
"""These widen weights in registers."""


def has_fp8(architecture: Architecture) -> bool:
    """Whether tensor cores multiply e4m3: from 8.9 on, of the generations that this package is compiled for."""
    return architecture >= 89 and architecture in ARCHITECTURES


def has_nvfp4(architecture: Architecture) -> bool:
    """Whether there is a block-scaled e2m1 product that Triton reaches: on 10.0, 10.3, 12.0 and, with a Triton new
    enough, 12.1."""
    if architecture == 121:
        return triton_version() >= NVFP4_ON_12_1_FROM
    return architecture in (100, 103, 120)


NVFP4_ON_12_1_FROM = (3, 9)
"""3.6 compares with 12.0 exactly and fails to compile the product on 12.1 (triton pull request 10010); 3.7 and 3.8 were
not tried."""

NVFP4_DEPTH = 128
"""Inputs of a native NVFP4 product divide by this; other sizes are multiplied in bfloat16."""


def depth_of(in_features: int) -> int:
    """Inputs of one loop step: the most of 128, 64 or 32 that divides; raises KernelInputError where none does."""
    for depth in (128, 64, 32):
        if in_features % depth == 0:
            return depth
    raise KernelInputError(f"{in_features} input features, needed a multiple of 32")


def tile_for(arithmetic: Arithmetic, tokens_per_expert: int, in_features: int) -> Tile:
    """The tile of a product, the same on every architecture.

    `tokens_per_expert` is the average, which is all that the host knows. Tiles with few tokens are bound by memory:
    small, so that several programs per multiprocessor keep loads in flight. Only BF16 leaves registers for 128 tokens:
    the others hold widened weights or a second accumulator. Shared memory stays below the 99 KB of 8.6, 8.9 and 12.x.
    """
    depth = depth_of(in_features)
    if arithmetic is Arithmetic.BF16:
        depth = min(depth, 64)
    if arithmetic is Arithmetic.NVFP4:
        tokens = 16 if tokens_per_expert <= 16 else 64
        return Tile(rows=128, tokens=tokens, depth=NVFP4_DEPTH, warps=4, stages=4 if tokens == 16 else 3)
    if tokens_per_expert <= 16:
        return Tile(rows=64, tokens=16, depth=depth, warps=4, stages=4)
    if arithmetic in UNPACKED:
        return Tile(rows=64, tokens=64, depth=min(depth, 64), warps=4, stages=3)
    if arithmetic is Arithmetic.FP8:
        return Tile(rows=128, tokens=64, depth=depth, warps=8, stages=3)
    return Tile(rows=128, tokens=64 if tokens_per_expert <= 64 else 128, depth=depth, warps=8, stages=3)
