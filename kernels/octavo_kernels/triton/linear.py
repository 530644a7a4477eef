# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Dense linear layers: few rows by a product that is split along K, many BF16 rows by torch's own (cuBLAS).

With few rows a layer is a read of its weights: as many programs as keep the memory busy each take a run of K, and a
second kernel adds their parts in rising order, so that the sum is the same every time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from octavo_kernels.errors import require_contiguous, require_dtype, require_shape
from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors
from octavo_kernels.triton.experts_grouped import POINTERS, block_scaled, matrix_instruction
from octavo_kernels.triton.experts_product import product
from octavo_kernels.triton.experts_tiles import Arithmetic, Tile, has_fp8, has_nvfp4, tile_for
from octavo_kernels.triton.experts_weights import StoredMatrix

FEW_ROWS = 64
"""Up to here a BF16 layer runs in Triton, beyond it in cuBLAS, which is then bound by compute and better at it."""

PROGRAMS_WANTED = 264
"""Two for each multiprocessor of a large GPU; K is split until there are so many."""

SUM_BLOCK = 1024


@triton.jit(do_not_specialize=["token_count"])
def linear_product(
    x,
    x_scales,
    values,
    scales,
    zeros,
    global_scales,
    out,
    token_count,
    n,
    k,
    out_rows,
    span,
    ARITHMETIC: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_GLOBAL: tl.constexpr,
    PADDED: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """Part of a product over the `span` inputs of this program's split; out [splits, token_count, out_rows]."""
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = row if PADDED else tl.minimum(row, out_rows - 1)
    token = tl.program_id(1) * BM + tl.arange(0, BM)
    real = token < token_count
    tokens = tl.where(real, token, 0).to(tl.int64)
    split = tl.program_id(2).to(tl.int64)
    start = tl.program_id(2) * span
    matrix = tl.full([], 0, tl.int64)
    acc = product(
        x, x_scales, values, scales, zeros, matrix, rows, tokens, n, k, out_rows, start, tl.minimum(start + span, k),
        ARITHMETIC, False, GROUP, HAS_ZEROS, BN, BM, BK,
    )  # fmt: skip
    if HAS_GLOBAL:
        acc *= tl.load(global_scales)
    place = out + (split * token_count + tokens)[:, None] * out_rows + row[None, :]
    tl.store(place, tl.trans(acc).to(out.dtype.element_ty), mask=real[:, None] & (row < out_rows)[None, :])


@triton.jit(do_not_specialize=["splits"])
def sum_splits(parts, out, elements, splits, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        total += tl.load(parts + split * elements + place, mask=inside, other=0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


def splits_for(programs: int, in_features: int, depth: int) -> int:
    """How many runs K is cut into where `programs` tiles alone would leave a GPU idle; at least four steps each."""
    return max(1, min(-(-PROGRAMS_WANTED // programs), in_features // (4 * depth)))


@on_device_of_tensors
def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T`: x [T, K] float32 or bfloat16, weight [N, K] bfloat16 or float32, result [T, N] in x's dtype.

    BF16 weights: operands are bfloat16, sums float32. Float32 weights (a router's) are multiplied in float32 by torch.
    """
    require_dtype("x", x, torch.float32, torch.bfloat16)
    require_dtype("weight", weight, torch.bfloat16, torch.float32)
    require_shape("x", x, None, weight.shape[-1])
    require_shape("weight", weight, None, None)
    require_contiguous(x=x, weight=weight)
    if weight.dtype == torch.float32:
        return F.linear(x.float(), weight).to(x.dtype)
    rows, (n, k) = x.shape[0], weight.shape
    if rows > FEW_ROWS or k % 32:
        return F.linear(x.to(torch.bfloat16), weight).to(x.dtype)
    stored = StoredMatrix(Arithmetic.BF16, (1, n, k), weight.unsqueeze(0))
    return split_product(x.to(torch.bfloat16), None, stored, tile_for(Arithmetic.BF16, rows, k), x.dtype)


def split_product(
    x: torch.Tensor, x_scales: torch.Tensor | None, weight: StoredMatrix, tile: Tile, dtype: torch.dtype
) -> torch.Tensor:
    """`x` [T, k] in what `weight` is multiplied with, times the single matrix of `weight`: [T, n] in `dtype`."""
    _, n, k = weight.shape
    rows = x.shape[0]
    out = torch.empty((rows, n), dtype=dtype, device=x.device)
    if not rows:
        return out
    row_tiles, token_tiles = triton.cdiv(n, tile.rows), triton.cdiv(rows, tile.tokens)
    splits = splits_for(row_tiles * token_tiles, k, tile.depth)
    span = triton.cdiv(k // tile.depth, splits) * tile.depth
    splits = triton.cdiv(k, span)
    parts = torch.empty((splits, rows, n), dtype=torch.float32, device=x.device) if splits > 1 else out
    linear_product[(row_tiles, token_tiles, splits)](
        x,
        x if x_scales is None else x_scales,
        weight.values,
        weight.values if weight.scales is None else weight.scales,
        weight.values if weight.zeros is None else weight.zeros,
        weight.values if weight.global_scales is None else weight.global_scales,
        parts,
        rows,
        weight.values.shape[1],
        k,
        n,
        span,
        ARITHMETIC=weight.arithmetic.value,
        GROUP=weight.group,
        HAS_ZEROS=weight.zeros is not None,
        HAS_GLOBAL=weight.global_scales is not None,
        PADDED=weight.values.shape[1] % tile.rows == 0,
        BN=tile.rows,
        BM=tile.tokens,
        BK=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if splits > 1:
        sum_splits[(triton.cdiv(out.numel(), SUM_BLOCK),)](parts, out, out.numel(), splits, BLOCK=SUM_BLOCK)
    return out


def _case(arithmetic: Arithmetic, group: int, tokens: int) -> AotCase:
    tile = tile_for(arithmetic, tokens, 7168)

    def why_not(architecture: int) -> str | None:
        if arithmetic is Arithmetic.FP8 and not has_fp8(architecture):
            return "tensor cores multiply e4m3 from compute capability 8.9 on"
        if arithmetic is Arithmetic.NVFP4 and not has_nvfp4(architecture):
            return "no block-scaled e2m1 product: weights are widened to bfloat16 there"
        return None

    return AotCase(
        name=f"linear/{arithmetic.value}/g{group}/m{tokens}",
        kernel=linear_product,
        signature={
            **POINTERS[arithmetic],
            "x_scales": "*fp8e4nv" if arithmetic is Arithmetic.NVFP4 else "*fp32",
            "zeros": "*u8",
            "global_scales": "*fp32",
            "out": "*fp32",
            "token_count": "i32",
            "n": "i32",
            "k": "i32",
            "out_rows": "i32",
            "span": "i32",
        },
        constants={
            "ARITHMETIC": arithmetic.value,
            "GROUP": group,
            "HAS_ZEROS": False,
            "HAS_GLOBAL": arithmetic is Arithmetic.NVFP4,
            "PADDED": arithmetic is not Arithmetic.BF16,
            "BN": tile.rows,
            "BM": tile.tokens,
            "BK": tile.depth,
        },
        num_warps=tile.warps,
        num_stages=tile.stages,
        mma=block_scaled if arithmetic is Arithmetic.NVFP4 else matrix_instruction,
        why_not=why_not,
        unaligned=frozenset({"token_count"}),
    )


AOT_CASES: tuple[AotCase, ...] = (
    _case(Arithmetic.BF16, 128, 16),
    _case(Arithmetic.INT4, 128, 16),
    _case(Arithmetic.FP8, 128, 16),
    _case(Arithmetic.NVFP4, 16, 16),
    AotCase(
        name="linear/sum_splits",
        kernel=sum_splits,
        signature={"parts": "*fp32", "out": "*fp32", "elements": "i32", "splits": "i32"},
        constants={"BLOCK": SUM_BLOCK},
        max_registers=64,
        unaligned=frozenset({"splits"}),
    ),
)
