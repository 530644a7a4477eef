# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Decode attention over pages: few query rows against long contexts, so the context is split over programs.

Each program takes one row, the query heads of one KV head, and one of SPLITS equal parts of the row's context; a second
kernel puts the parts together. The grid follows from shapes alone: programs past the end of a context leave at once, so
a captured graph fits every later step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.formats.verdict import Finding
from octavo_kernels.triton.attend_pages import attend, mark_foreign

_FOREIGN = tl.constexpr(int(Finding.RANGE | Finding.TAG))


@triton.jit
def keys_seen(position, context, table_width, PAGE: tl.constexpr):
    """How many of a row's keys a query at `position` sees; none beyond the context or the table."""
    return tl.maximum(tl.minimum(tl.minimum(position.to(tl.int32) + 1, context), table_width * PAGE), 0)


@triton.jit
def keys_per_split(keys, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Keys of each part of a context, in whole tiles, so that at most SPLITS parts cover it."""
    return tl.cdiv(tl.cdiv(keys, BLOCK_N), SPLITS) * BLOCK_N


@triton.jit
def place_of_parts(row, token, longest_row):
    """Which of R places of the scratch keeps a token's parts: with rows of several tokens there are only R tokens."""
    return tl.where(longest_row > 1, token, row)


@triton.jit(do_not_specialize=("table_width", "num_pages", "longest_row"))
def paged_decode(
    query,
    k_pages,
    v_pages,
    k_scale,
    v_scale,
    block_table,
    query_start,
    context_lens,
    positions,
    page_tags,
    verdict,
    out,
    part_values,
    part_sums,
    table_width,
    num_pages,
    longest_row,
    scale_log2,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    K_SCALES: tl.constexpr,
    V_SCALES: tl.constexpr,
    CHECK: tl.constexpr,
):
    """Grid (R, kv_heads * ceil(GROUP / BLOCK_M), SPLITS). Rows of more than `longest_row` tokens are left alone.

    With one split the result goes to `out` [T, heads, DIM]; else part_values [R, heads, SPLITS, DIM] and part_sums
    [R, heads, SPLITS, 2] (largest score, sum of shares) float32 are for `merge_splits`.
    """
    row = tl.program_id(0)
    blocks: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    kv_head = tl.program_id(1) // blocks
    member = (tl.program_id(1) % blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    head = kv_head * GROUP + member
    dims = tl.arange(0, BLOCK_D)
    real = (member < GROUP)[:, None] & (dims < DIM)[None, :]
    start = tl.load(query_start + row)
    end = tl.load(query_start + row + 1)
    context = tl.load(context_lens + row)
    table_row = block_table + row.to(tl.int64) * table_width * 2
    if end - start > longest_row:
        end = start
    for token in range(start, end):
        keys = keys_seen(tl.load(positions + token), context, table_width, PAGE)
        part = keys_per_split(keys, SPLITS, BLOCK_N)
        first = split * part
        # One split also answers for a row without keys, which reads as zero.
        if (first < keys) | (SPLITS == 1):
            last = tl.minimum(first + part, keys)
            too_long = context > table_width * PAGE
            if CHECK:
                found = mark_foreign(
                    table_row, first // PAGE, tl.cdiv(last, PAGE), page_tags, num_pages, too_long, verdict + row
                )
                if found != 0:
                    last = first
            place = head.to(tl.int64) + token * KV_HEADS * GROUP
            asked = tl.load(query + place[:, None] * DIM + dims[None, :], mask=real, other=0.0).to(tl.bfloat16)
            largest, total, values = attend(
                asked,
                tl.full([BLOCK_M], 0, tl.int32) + (last - 1),
                table_row,
                first,
                last,
                last,
                k_pages,
                v_pages,
                k_scale,
                v_scale,
                kv_head,
                num_pages,
                scale_log2,
                KV_HEADS,
                DIM,
                BLOCK_D,
                PAGE,
                BLOCK_M,
                BLOCK_N,
                FP8,
                NATIVE,
                K_SCALES,
                V_SCALES,
                1,
            )
            if SPLITS == 1:
                values = tl.where(last > first, values / total[:, None], 0.0)
                if not CHECK:
                    values = tl.where(too_long, float("nan"), values)
                tl.store(out + place[:, None] * DIM + dims[None, :], values, mask=real)
            else:
                kept = place_of_parts(row, token, longest_row)
                places = (head.to(tl.int64) + kept * KV_HEADS * GROUP) * SPLITS + split
                tl.store(part_values + places[:, None] * DIM + dims[None, :], values, mask=real)
                tl.store(part_sums + places * 2, largest, mask=member < GROUP)
                tl.store(part_sums + places * 2 + 1, total, mask=member < GROUP)


@triton.jit(do_not_specialize=("table_width", "longest_row"))
def merge_splits(
    part_values,
    part_sums,
    query_start,
    context_lens,
    positions,
    verdict,
    out,
    table_width,
    longest_row,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    CHECK: tl.constexpr,
):
    """Grid (R, HEADS): softmax of a row's parts, as `paged_decode` left them; zero where the check found a page."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    dims = tl.arange(0, BLOCK_D)
    start = tl.load(query_start + row)
    end = tl.load(query_start + row + 1)
    context = tl.load(context_lens + row)
    if end - start > longest_row:
        end = start
    trusted = True
    if CHECK:
        trusted = (tl.load(verdict + row) & _FOREIGN) == 0
    for token in range(start, end):
        keys = keys_seen(tl.load(positions + token), context, table_width, PAGE)
        parts = tl.cdiv(keys, tl.maximum(keys_per_split(keys, SPLITS, BLOCK_N), 1))
        kept = head.to(tl.int64) + place_of_parts(row, token, longest_row) * HEADS
        split = tl.arange(0, SPLITS)
        largest = tl.load(part_sums + (kept * SPLITS + split) * 2, mask=split < parts, other=float("-inf"))
        base = tl.max(largest, 0)
        base = tl.where(base == float("-inf"), 0.0, base)
        sums = tl.load(part_sums + (kept * SPLITS + split) * 2 + 1, mask=split < parts, other=0.0)
        total = tl.sum(tl.exp2(largest - base) * sums, 0)
        values = tl.zeros([BLOCK_D], tl.float32)
        for first in range(0, parts, AT_ONCE):
            some = first + tl.arange(0, AT_ONCE)
            places = kept * SPLITS + some
            weight = tl.exp2(tl.load(part_sums + places * 2, mask=some < parts, other=float("-inf")) - base)
            read = (some < parts)[:, None] & (dims < DIM)[None, :]
            part = tl.load(part_values + places[:, None] * DIM + dims[None, :], mask=read, other=0.0)
            values += tl.sum(weight[:, None] * part, 0)
        values = tl.where(trusted & (keys > 0), values / total, 0.0)
        if not CHECK:
            values = tl.where(context > table_width * PAGE, float("nan"), values)
        place = head.to(tl.int64) + token * HEADS
        tl.store(out + place * DIM + dims, values, mask=dims < DIM)
