# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The inner loop of latent attention, which decode and prefill share.

All heads of a token read the same cached row. Its latent part is loaded once per tile and is both key and value; the
rotated part takes part in the scores only. Numbers are as in `attend_pages.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.triton.attend_pages import PER_TOKEN, load_elements, slots_of

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
def attend_latent(
    query_latent,
    query_rope,
    last,
    table_row,
    first_key,
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
):
    """As `attend_pages.attend`, over rows of LATENT + ROPE elements; the sum of values is [BLOCK_M, BLOCK_L]."""
    whole = 1.0
    if SCALES != _PER_TOKEN:
        whole = tl.load(scale)
        scale_log2 *= whole
    latent = tl.arange(0, BLOCK_L)
    rope = tl.arange(0, BLOCK_R)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    values = tl.zeros([BLOCK_M, BLOCK_L], tl.float32)
    for start in range(first_key, end_key, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        inside = tokens < end_key
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
        scores = tl.where(tokens[None, :] <= last[:, None], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # Nothing finite seen yet: minus infinity minus itself would be NaN.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        shares = tl.exp2(scores - base[:, None])
        fading = tl.exp2(largest - base)
        total = total * fading + tl.sum(shares, 1)
        if SCALES == _PER_TOKEN:
            shares *= factor
        values = tl.dot(shares.to(tl.bfloat16), held, values * fading[:, None])
        largest = larger
    return largest, total, values * whole
