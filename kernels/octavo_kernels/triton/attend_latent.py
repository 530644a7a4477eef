# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The inner loop of latent attention, which decode and prefill share.

All heads of a token read the same cached row. Its latent part is loaded once per tile and is both key and value; the
rotated part takes part in the scores only. Numbers are as in `attend_pages.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.triton.attend_pages import PER_TOKEN, load_elements, only_numbers, slots_of

_PER_TOKEN = tl.constexpr(PER_TOKEN)


@triton.jit
def load_queries(
    query, offsets, asks, LATENT: tl.constexpr, BLOCK_L: tl.constexpr, ROPE: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Query rows at `offsets` [M] in bfloat16: their latent part [M, BLOCK_L] and their rotated part [M, BLOCK_R]."""
    latent = tl.arange(0, BLOCK_L)
    rope = tl.arange(0, BLOCK_R)
    real = asks[:, None] & (latent < LATENT)[None, :]
    query_latent = tl.load(query + offsets[:, None] + latent[None, :], mask=real, other=0.0).to(tl.bfloat16)
    real = asks[:, None] & (rope < ROPE)[None, :]
    query_rope = tl.load(query + offsets[:, None] + (LATENT + rope)[None, :], mask=real, other=0.0).to(tl.bfloat16)
    return query_latent, query_rope


@triton.jit
def attend_latent_part(
    largest,
    total,
    values,
    query_latent,
    query_rope,
    last,
    table_row,
    first,
    end,
    pages,
    scale,
    num_pages,
    scale_log2,
    LATENT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PAGE: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    SCALES: tl.constexpr,
    WIDTH: tl.constexpr,
    APART: tl.constexpr,
):
    """As `attend_pages.attend_part`."""
    latent = tl.arange(0, BLOCK_L)
    rope = tl.arange(0, BLOCK_R)
    for start in range(first, end, WIDTH):
        tokens = start + tl.arange(0, WIDTH)
        inside = tokens < end
        slot = slots_of(tokens, inside, table_row, num_pages, PAGE)
        row = slot[:, None] * (LATENT + ROPE)
        real = inside[:, None]
        if LATENT != BLOCK_L:
            real = real & (latent < LATENT)[None, :]
        held = load_elements(pages, row + latent[None, :], real, FP8, NATIVE)
        real = inside[:, None]
        if ROPE != BLOCK_R:
            real = real & (rope < ROPE)[None, :]
        rotated = load_elements(pages, row + (LATENT + rope)[None, :], real, FP8, NATIVE)
        scores = tl.dot(query_latent, tl.trans(held))
        scores = tl.dot(query_rope, tl.trans(rotated), scores) * scale_log2
        if SCALES == _PER_TOKEN:
            factor = tl.load(scale + slot, mask=inside, other=0.0)[None, :]
            scores *= factor
        visible = tokens[None, :] <= last[:, None]
        scores = tl.where(visible, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # Nothing finite seen yet: minus infinity minus itself would be NaN.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        shares = tl.exp2(scores - base[:, None])
        fading = tl.exp2(largest - base)
        total = total * fading + tl.sum(shares, 1)
        if SCALES == _PER_TOKEN:
            shares *= factor
        if APART:
            held, spoilt = only_numbers(held, visible)
            total += spoilt
        values = tl.dot(shares.to(tl.bfloat16), held, values * fading[:, None])
        largest = larger
    return largest, total, values


@triton.jit
def attend_latent(
    query_latent,
    query_rope,
    last,
    table_row,
    first_key,
    common_end,
    end_key,
    pages,
    scale,
    num_pages,
    scale_log2,
    LATENT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    SCALES: tl.constexpr,
    PARTS: tl.constexpr,
):
    """As `attend_pages.attend`, over rows of LATENT + ROPE elements; the sum of values is [BLOCK_M, BLOCK_L]."""
    whole = 1.0
    if SCALES != _PER_TOKEN:
        whole = tl.load(scale)
        scale_log2 *= whole
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    values = tl.zeros([BLOCK_M, BLOCK_L], tl.float32)
    first_end = end_key if PARTS == 1 else common_end
    largest, total, values = attend_latent_part(
        largest, total, values, query_latent, query_rope, last, table_row, first_key, first_end,
        pages, scale, num_pages, scale_log2,
        LATENT, BLOCK_L, ROPE, BLOCK_R, PAGE, FP8, NATIVE, SCALES, BLOCK_N, False,
    )  # fmt: skip
    if PARTS == 2:
        # Beside the widening of FP8 this second body fits the registers with 16 keys, the least that a product takes.
        largest, total, values = attend_latent_part(
            largest, total, values, query_latent, query_rope, last, table_row, common_end, end_key,
            pages, scale, num_pages, scale_log2,
            LATENT, BLOCK_L, ROPE, BLOCK_R, PAGE, FP8, NATIVE, SCALES, 16 if FP8 else BLOCK_N, True,
        )  # fmt: skip
    return largest, total, values * whole
