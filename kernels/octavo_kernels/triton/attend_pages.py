# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The inner loop of paged attention, which decode and prefill share: softmax over keys found through a block table.

Scores, softmax and sums are float32; operands of the products are bfloat16. Exponentials are taken to base 2, so the
scale of the scores holds log2(e) already.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.formats.verdict import UNCONCLUDED, Finding
from octavo_kernels.triton.e4m3 import decode_e4m3

_RANGE = tl.constexpr(int(Finding.RANGE))
_TAG = tl.constexpr(int(Finding.TAG))
_UNCONCLUDED = tl.constexpr(UNCONCLUDED)
PAIRS_AT_ONCE = tl.constexpr(128)
"""Pairs of a block-table row that the fused check compares at once."""

WHOLE_TENSOR = 0
PER_HEAD = 1
PER_TOKEN = 2
"""How a scale is laid out: [], [kv_heads], or [num_pages, page_size, kv_heads]."""
_PER_HEAD = tl.constexpr(PER_HEAD)
_PER_TOKEN = tl.constexpr(PER_TOKEN)


@triton.jit
def page_or_null(page, num_pages):
    """Page ids outside the pool become page 0, as in `reference/block_table.py`."""
    return tl.where((page > 0) & (page < num_pages), page, 0)


@triton.jit
def slots_of(tokens, inside, table_row, num_pages, PAGE: tl.constexpr):
    """Flat cache slots (int64) of a row's token positions; those not `inside` get the NULL page's."""
    page = tl.load(table_row + (tokens // PAGE) * 2, mask=inside, other=0)
    return page_or_null(page, num_pages).to(tl.int64) * PAGE + tokens % PAGE


@triton.jit
def mark_foreign(table_row, first_page, end_page, page_tags, num_pages, too_long, verdict_word):
    """Compare a row's pairs with the page records, mark the row's verdict, and return what was found (0 if nothing).

    too_long: whether the context reaches past the table, a finding of its own.
    """
    found = tl.where(too_long, _RANGE, 0)
    for first in range(first_page, end_page, PAIRS_AT_ONCE):
        entry = first + tl.arange(0, PAIRS_AT_ONCE)
        used = entry < end_page
        page = tl.load(table_row + entry * 2, mask=used, other=0)
        tag = tl.load(table_row + entry * 2 + 1, mask=used, other=0)
        known = page_or_null(page, num_pages)
        current = tl.load(page_tags + known, mask=used, other=0)
        found |= tl.max(tl.where(used & ((page <= 0) | (page >= num_pages)), _RANGE, 0), 0)
        found |= tl.max(tl.where(used & (current != tag), _TAG, 0), 0)
    if found != 0:
        tl.atomic_or(verdict_word, found | _UNCONCLUDED)
    return found


@triton.jit
def load_elements(pages, offsets, inside, FP8: tl.constexpr, NATIVE: tl.constexpr):
    """Stored elements as bfloat16, zero where not `inside`."""
    if FP8:
        elements = decode_e4m3(tl.load(pages + offsets, mask=inside, other=0), NATIVE)
    else:
        elements = tl.load(pages + offsets, mask=inside, other=0.0)
    return elements


@triton.jit
def whole_scale(scale, kv_head, SCALES: tl.constexpr):
    """The factor of a KV head where scales are not per token, else 1."""
    if SCALES == _PER_TOKEN:
        factor = 1.0
    elif SCALES == _PER_HEAD:
        factor = tl.load(scale + kv_head)
    else:
        factor = tl.load(scale)
    return factor


@triton.jit
def only_numbers(held, visible):
    """Values [N, D] with zeros for what is no number, and per query [M] NaN if such a value is `visible` [M, N], or 0.

    A whole head is NaN then, in `reference/` only the value's own element: that would take as many sums again.
    """
    number = tl.abs(held.to(tl.float32)) < float("inf")
    spoiled = tl.max(tl.where(number, 0, 1), 1)
    seen = tl.max(tl.where(visible, spoiled[None, :], 0), 1)
    return tl.where(number, held, 0.0), tl.where(seen > 0, float("nan"), 0.0)


@triton.jit
def seen_by_all(last, asks, BLOCK_N: tl.constexpr):
    """The end of the whole tiles of keys that every query sees which asks."""
    return (tl.min(tl.where(asks, last, (1 << 30)), 0) + 1) // BLOCK_N * BLOCK_N


@triton.jit
def attend_part(
    largest,
    total,
    values,
    query,
    last,
    table_row,
    first,
    end,
    k_pages,
    v_pages,
    k_scale,
    v_scale,
    kv_head,
    num_pages,
    scale_log2,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    K_SCALES: tl.constexpr,
    V_SCALES: tl.constexpr,
    WIDTH: tl.constexpr,
    APART: tl.constexpr,
):
    """Add keys first .. end - 1, WIDTH at a time, to what `attend` returns. APART: not every query sees all of them."""
    dims = tl.arange(0, BLOCK_D)
    for start in range(first, end, WIDTH):
        tokens = start + tl.arange(0, WIDTH)
        inside = tokens < end
        place = slots_of(tokens, inside, table_row, num_pages, PAGE) * KV_HEADS + kv_head
        offsets = place[:, None] * DIM + dims[None, :]
        real = inside[:, None]
        if DIM != BLOCK_D:
            real = real & (dims < DIM)[None, :]
        keys = load_elements(k_pages, offsets, real, FP8, NATIVE)
        scores = tl.dot(query, tl.trans(keys)) * scale_log2
        if K_SCALES == _PER_TOKEN:
            scores *= tl.load(k_scale + place, mask=inside, other=0.0)[None, :]
        visible = tokens[None, :] <= last[:, None]
        scores = tl.where(visible, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # Nothing finite seen yet: minus infinity minus itself would be NaN.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        shares = tl.exp2(scores - base[:, None])
        fading = tl.exp2(largest - base)
        total = total * fading + tl.sum(shares, 1)
        if V_SCALES == _PER_TOKEN:
            shares *= tl.load(v_scale + place, mask=inside, other=0.0)[None, :]
        held = load_elements(v_pages, offsets, real, FP8, NATIVE)
        if APART:
            held, spoilt = only_numbers(held, visible)
            total += spoilt
        values = tl.dot(shares.to(tl.bfloat16), held, values * fading[:, None])
        largest = larger
    return largest, total, values


@triton.jit
def attend(
    query,
    last,
    table_row,
    first_key,
    common_end,
    end_key,
    k_pages,
    v_pages,
    k_scale,
    v_scale,
    kv_head,
    num_pages,
    scale_log2,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    K_SCALES: tl.constexpr,
    V_SCALES: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Softmax of query rows over keys first_key .. end_key - 1 of a block-table row.

    query [BLOCK_M, BLOCK_D] bfloat16; last [BLOCK_M]: the last position that each query sees, below end_key. With one
    of PARTS all queries see the same keys. With two, those from common_end on are done apart: some queries do not see
    them, and 0 times a value that is no number would spoil these. Returns the largest score [BLOCK_M], the sum of
    shares [BLOCK_M], and the sum of shared values [BLOCK_M, BLOCK_D].
    """
    scale_log2 *= whole_scale(k_scale, kv_head, K_SCALES)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    values = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first_end = end_key if PARTS == 1 else common_end
    largest, total, values = attend_part(
        largest, total, values, query, last, table_row, first_key, first_end,
        k_pages, v_pages, k_scale, v_scale, kv_head, num_pages, scale_log2,
        KV_HEADS, DIM, BLOCK_D, PAGE, FP8, NATIVE, K_SCALES, V_SCALES, BLOCK_N, False,
    )  # fmt: skip
    if PARTS == 2:
        # This second body fits the registers with half the keys.
        largest, total, values = attend_part(
            largest, total, values, query, last, table_row, common_end, end_key,
            k_pages, v_pages, k_scale, v_scale, kv_head, num_pages, scale_log2,
            KV_HEADS, DIM, BLOCK_D, PAGE, FP8, NATIVE, K_SCALES, V_SCALES,
            BLOCK_N // 2 if BLOCK_N >= 64 else BLOCK_N, True,
        )  # fmt: skip
    return largest, total, values * whole_scale(v_scale, kv_head, V_SCALES)
