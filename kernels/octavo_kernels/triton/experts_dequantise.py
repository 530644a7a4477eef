# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Dequantises some experts into bfloat16 scratch: for prefill, where each weight is multiplied by many tokens.

Experts without tokens are left out. The scratch has the row order of the stored matrix.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.e4m3 import decode_e4m3
from octavo_kernels.triton.experts_tiles import Arithmetic, depth_of
from octavo_kernels.triton.experts_weights import StoredMatrix
from octavo_kernels.triton.int4 import int4_tile
from octavo_kernels.triton.nvfp4 import nvfp4_tile

ROWS = 64


@triton.jit(do_not_specialize=["first_expert"])
def dequantise_experts(
    values,
    scales,
    zeros,
    global_scales,
    counts,
    out,
    n,
    k,
    out_rows,
    first_expert,
    ARITHMETIC: tl.constexpr,
    PAIRED: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    place = tl.program_id(2).to(tl.int64)
    expert = first_expert + place
    if tl.load(counts + expert) == 0:
        return
    rows = tl.program_id(1) * BN + tl.arange(0, BN)
    k0 = tl.program_id(0) * BK
    inputs = k0 + tl.arange(0, BK)
    if ARITHMETIC == "int4":
        tile = int4_tile(values, scales, zeros, expert, rows, k0, n, k, BN, BK, GROUP, HAS_ZEROS)
    elif ARITHMETIC == "nvfp4_as_bf16":
        exact = nvfp4_tile(values, scales, expert, rows, k0, n, k, BN, BK).to(tl.float32)
        tile = (exact * tl.load(global_scales + expert)).to(tl.bfloat16)
    else:
        last_block = tl.cdiv(out_rows, 128) - 1
        block_rows = ((rows % 2) * (out_rows // 2) + rows // 2) // 128 if PAIRED else rows // 128
        block_rows = expert * (last_block + 1) + tl.minimum(block_rows, last_block)
        codes = tl.load(values + (expert * n + rows)[:, None] * k + inputs[None, :])
        scale = tl.load(scales + block_rows * tl.cdiv(k, 128) + k0 // 128)
        tile = (decode_e4m3(codes, False).to(tl.float32) * scale[:, None]).to(tl.bfloat16)
    tl.store(out + (place * n + rows)[:, None] * k + inputs[None, :], tile)


def dequantise(
    weights: StoredMatrix, counts: torch.Tensor, scratch: torch.Tensor, first: int, count: int, *, paired: bool
) -> StoredMatrix:
    """Experts first to first + count as a BF16 matrix in `scratch` (flat bfloat16, large enough)."""
    _, n, k = weights.shape
    stored = weights.values.shape[1]
    out = scratch[: count * stored * k].view(count, stored, k)
    depth = depth_of(k)
    values = weights.values
    dequantise_experts[(k // depth, stored // ROWS, count)](
        values.view(torch.uint8) if values.dtype == torch.float8_e4m3fn else values,
        weights.scales,
        values if weights.zeros is None else weights.zeros,
        counts if weights.global_scales is None else weights.global_scales,
        counts,
        out,
        stored,
        k,
        n,
        first,
        ARITHMETIC=weights.arithmetic.value,
        PAIRED=paired,
        GROUP=weights.group,
        HAS_ZEROS=weights.zeros is not None,
        BN=ROWS,
        BK=depth,
    )
    return StoredMatrix(Arithmetic.BF16, (count, n, k), out)


def _case(arithmetic: Arithmetic, scales: str, group: int, *, zeros: bool = False) -> AotCase:
    return AotCase(
        name=f"experts/dequantise/{arithmetic.value}/g{group}{'z' if zeros else ''}",
        kernel=dequantise_experts,
        signature={
            "values": "*u8",
            "scales": scales,
            "zeros": "*u8",
            "global_scales": "*fp32",
            "counts": "*i32",
            "out": "*bf16",
            "n": "i32",
            "k": "i32",
            "out_rows": "i32",
            "first_expert": "i32",
        },
        constants={
            "ARITHMETIC": arithmetic.value,
            "PAIRED": True,
            "GROUP": group,
            "HAS_ZEROS": zeros,
            "BN": ROWS,
            "BK": 128,
        },
        max_registers=200,
        unaligned=frozenset({"first_expert"}),
    )


AOT_CASES: tuple[AotCase, ...] = (
    _case(Arithmetic.INT4, "*bf16", 32, zeros=True),
    _case(Arithmetic.NVFP4_AS_BF16, "*u8", 16),
)
