# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Grouped product: each tile of sorted slots times the weights of its expert.

Two epilogues. `GATED` is the first product of an expert: its weight rows alternate between gate and up, a program
holds both of a pair, and what it stores is `silu(gate) * up`. The other is the second product, whose result is
multiplied by the slot's routing weight. Either stores to the slot's own row: no atomics, no order of arrival.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.triton.aot_case import ARCHITECTURES, DISTINCT, AotCase, Architecture
from octavo_kernels.triton.experts_product import product
from octavo_kernels.triton.experts_tiles import Arithmetic, Tile, has_fp8, has_nvfp4, tile_for
from octavo_kernels.triton.experts_weights import StoredMatrix
from octavo_kernels.triton.token_sort import SortedSlots

TILES_IN_A_BAND = 8
"""Neighbouring programs share weights within a band of so many token tiles, which stay in the L2 cache."""


@triton.jit(do_not_specialize=["first_expert", "most_tiles"])
def grouped_product(
    x,
    x_scales,
    values,
    scales,
    zeros,
    global_scales,
    out,
    shares,
    order,
    tile_experts,
    tile_count,
    n,
    k,
    out_rows,
    first_expert,
    experts,
    most_tiles,
    ARITHMETIC: tl.constexpr,
    GATED: tl.constexpr,
    SLOTS_PER_ROW: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_GLOBAL: tl.constexpr,
    BAND: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """values hold experts first_expert to first_expert + experts; a tile of another expert is left alone."""
    row_tiles = tl.cdiv(n, BN)
    band = tl.program_id(0) // (BAND * row_tiles)
    within = tl.program_id(0) % (BAND * row_tiles)
    tiles_here = tl.minimum(most_tiles - band * BAND, BAND)
    tile = band * BAND + within % tiles_here
    if tile >= tl.load(tile_count):
        return
    expert = (tl.load(tile_experts + tile) - first_expert).to(tl.int64)
    if (expert < 0) | (expert >= experts):
        return
    slot = tl.load(order + tile * BM + tl.arange(0, BM)).to(tl.int64)
    real = slot >= 0
    slot = tl.where(real, slot, 0)
    rows = (within // tiles_here) * BN + tl.arange(0, BN)
    acc = product(
        x, x_scales, values, scales, zeros, expert, rows, slot // SLOTS_PER_ROW, n, k, out_rows, 0, k,
        ARITHMETIC, GATED, GROUP, HAS_ZEROS, BN, BM, BK,
    )  # fmt: skip
    if HAS_GLOBAL:
        acc *= tl.load(global_scales + expert)
    if GATED:
        gate, up = tl.split(tl.permute(tl.reshape(acc, [BN // 2, 2, BM]), [0, 2, 1]))
        result = gate / (1.0 + tl.exp(-gate)) * up
        column = (within // tiles_here) * (BN // 2) + tl.arange(0, BN // 2)
        width = out_rows // 2
    else:
        result = acc * tl.load(shares + slot, mask=real, other=0.0)[None, :]
        column = rows
        width = out_rows
    place = out + slot[:, None] * width + column[None, :]
    tl.store(place, tl.trans(result).to(out.dtype.element_ty), mask=real[:, None] & (column < width)[None, :])


def launch(
    x: torch.Tensor,
    weights: StoredMatrix,
    arithmetic: Arithmetic,
    tile: Tile,
    slots: SortedSlots,
    out: torch.Tensor,
    *,
    slots_per_row: int,
    x_scales: torch.Tensor | None = None,
    shares: torch.Tensor | None = None,
    first_expert: int = 0,
) -> None:
    """Fill `out`: the gated product into [slots, n / 2] where there are no `shares` [slots], else into [slots, n].

    x [rows, k] in what `arithmetic` multiplies; slot s reads row s // slots_per_row.
    """
    experts, n, k = weights.shape
    stored = weights.values.shape[1]
    grid = (slots.most_tiles * (stored // tile.rows),)
    grouped_product[grid](
        x,
        x if x_scales is None else x_scales,
        weights.values,
        weights.values if weights.scales is None else weights.scales,
        weights.values if weights.zeros is None else weights.zeros,
        weights.values if weights.global_scales is None else weights.global_scales,
        out,
        x if shares is None else shares,
        slots.order,
        slots.tile_experts,
        slots.tile_count,
        stored,
        k,
        n,
        first_expert,
        experts,
        slots.most_tiles,
        ARITHMETIC=arithmetic.value,
        GATED=shares is None,
        SLOTS_PER_ROW=slots_per_row,
        GROUP=weights.group,
        HAS_ZEROS=weights.zeros is not None,
        HAS_GLOBAL=weights.global_scales is not None,
        BAND=TILES_IN_A_BAND,
        BN=tile.rows,
        BM=tile.tokens,
        BK=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def matrix_instruction(architecture: int) -> str:
    """Weight tiles have 128 rows, so every product runs on the widest instruction that there is."""
    if architecture == 90:
        return "wgmma"
    return "tcgen05" if architecture in (100, 103) else "mma.sync"


def block_scaled(_architecture: int) -> str:
    """Native NVFP4 is only what this instruction does; Triton falls back to others without a word."""
    return "block_scale"


POINTERS: dict[Arithmetic, dict[str, str]] = {
    Arithmetic.BF16: {"x": "*bf16", "values": "*bf16", "scales": "*bf16"},
    Arithmetic.INT4: {"x": "*bf16", "values": "*u8", "scales": "*bf16"},
    Arithmetic.FP8: {"x": "*fp8e4nv", "values": "*fp8e4nv", "scales": "*fp32"},
    Arithmetic.FP8_AS_BF16: {"x": "*bf16", "values": "*u8", "scales": "*fp32"},
    Arithmetic.NVFP4: {"x": "*u8", "values": "*u8", "scales": "*fp8e4nv"},
    Arithmetic.NVFP4_AS_BF16: {"x": "*bf16", "values": "*u8", "scales": "*u8"},
}


def _case(
    arithmetic: Arithmetic,
    group: int,
    tokens: int,
    *,
    gated: bool,
    zeros: bool = False,
    architectures: tuple[Architecture, ...] = ARCHITECTURES,
) -> AotCase:
    tile = tile_for(arithmetic, tokens, 2048)
    kind = "gate_up" if gated else "down"

    def why_not(architecture: int) -> str | None:
        if arithmetic is Arithmetic.FP8 and not has_fp8(architecture):
            return "tensor cores multiply e4m3 from compute capability 8.9 on"
        if arithmetic is Arithmetic.FP8_AS_BF16 and has_fp8(architecture):
            return "FP8 weights are multiplied as they are from compute capability 8.9 on"
        if arithmetic is Arithmetic.NVFP4 and not has_nvfp4(architecture):
            return "no block-scaled e2m1 product: weights are widened to bfloat16 there"
        return None

    return AotCase(
        name=f"experts/{kind}/{arithmetic.value}/g{group}{'z' if zeros else ''}/m{tokens}",
        kernel=grouped_product,
        signature={
            **POINTERS[arithmetic],
            "x_scales": "*fp8e4nv" if arithmetic is Arithmetic.NVFP4 else "*fp32",
            "zeros": "*u8",
            "global_scales": "*fp32",
            "out": "*bf16" if gated else "*fp32",
            "shares": "*fp32",
            "order": "*i32",
            "tile_experts": "*i32",
            "tile_count": "*i32",
            "n": "i32",
            "k": "i32",
            "out_rows": "i32",
            "first_expert": "i32",
            "experts": "i32",
            "most_tiles": "i32",
        },
        constants={
            "ARITHMETIC": arithmetic.value,
            "GATED": gated,
            "SLOTS_PER_ROW": 8 if gated else 1,
            "GROUP": group,
            "HAS_ZEROS": zeros,
            "HAS_GLOBAL": arithmetic in (Arithmetic.NVFP4, Arithmetic.NVFP4_AS_BF16),
            "BAND": TILES_IN_A_BAND,
            "BN": tile.rows,
            "BM": tile.tokens,
            "BK": tile.depth,
        },
        architectures=architectures,
        num_warps=tile.warps,
        num_stages=tile.stages,
        mma=block_scaled if arithmetic is Arithmetic.NVFP4 else matrix_instruction,
        why_not=why_not,
        unaligned=frozenset({"first_expert", "experts", "most_tiles"}),
    )


AOT_CASES: tuple[AotCase, ...] = (
    _case(Arithmetic.INT4, 32, 16, gated=True),
    _case(Arithmetic.INT4, 32, 64, gated=False, architectures=DISTINCT),
    _case(Arithmetic.INT4, 128, 16, gated=False, zeros=True, architectures=DISTINCT),
    _case(Arithmetic.INT4, 128, 64, gated=True, architectures=DISTINCT),
    _case(Arithmetic.FP8, 128, 16, gated=True),
    _case(Arithmetic.FP8, 128, 64, gated=False, architectures=DISTINCT),
    _case(Arithmetic.FP8_AS_BF16, 128, 16, gated=True),
    _case(Arithmetic.FP8_AS_BF16, 128, 64, gated=False),
    _case(Arithmetic.BF16, 128, 16, gated=False),
    _case(Arithmetic.BF16, 128, 64, gated=True, architectures=DISTINCT),
    _case(Arithmetic.BF16, 128, 128, gated=True, architectures=DISTINCT),
    _case(Arithmetic.NVFP4, 16, 16, gated=True),
    _case(Arithmetic.NVFP4, 16, 64, gated=False),
    _case(Arithmetic.NVFP4_AS_BF16, 16, 16, gated=True),
    _case(Arithmetic.NVFP4_AS_BF16, 16, 64, gated=False, architectures=DISTINCT),
)
