# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Latent attention over pages: decode, split over the context as `paged_decode.py` splits it, and causal prefill."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.triton.attend_latent import attend_latent, load_queries
from octavo_kernels.triton.attend_pages import mark_foreign, seen_by_all
from octavo_kernels.triton.paged_decode import keys_per_split, keys_seen, place_of_parts
from octavo_kernels.triton.paged_prefill import row_of_tile


@triton.jit(do_not_specialize=("table_width", "num_pages", "longest_row"))
def mla_decode(
    query,
    pages,
    scale,
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
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    SCALES: tl.constexpr,
    CHECK: tl.constexpr,
):
    """Grid (R, ceil(HEADS / BLOCK_M), SPLITS); results as those of `paged_decode`, of LATENT elements."""
    row = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    latent = tl.arange(0, BLOCK_L)
    asks = head < HEADS
    real = asks[:, None] & (latent < LATENT)[None, :]
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
            place = head.to(tl.int64) + token * HEADS
            query_latent, query_rope = load_queries(
                query, place * (LATENT + ROPE), asks, LATENT, BLOCK_L, ROPE, BLOCK_R
            )
            largest, total, values = attend_latent(
                query_latent,
                query_rope,
                tl.full([BLOCK_M], 0, tl.int32) + (last - 1),
                table_row,
                first,
                last,
                last,
                pages,
                scale,
                num_pages,
                scale_log2,
                LATENT,
                BLOCK_L,
                ROPE,
                BLOCK_R,
                PAGE,
                BLOCK_M,
                BLOCK_N,
                FP8,
                NATIVE,
                SCALES,
                1,
            )
            if SPLITS == 1:
                values = tl.where(last > first, values / total[:, None], 0.0)
                if not CHECK:
                    values = tl.where(too_long, float("nan"), values)
                tl.store(out + place[:, None] * LATENT + latent[None, :], values, mask=real)
            else:
                kept = place_of_parts(row, token, longest_row)
                places = (head.to(tl.int64) + kept * HEADS) * SPLITS + split
                tl.store(part_values + places[:, None] * LATENT + latent[None, :], values, mask=real)
                tl.store(part_sums + places * 2, largest, mask=asks)
                tl.store(part_sums + places * 2 + 1, total, mask=asks)


@triton.jit(do_not_specialize=("rows", "table_width", "num_pages", "shortest_row"))
def mla_prefill(
    query,
    pages,
    scale,
    block_table,
    query_start,
    context_lens,
    positions,
    page_tags,
    verdict,
    out,
    rows,
    table_width,
    num_pages,
    shortest_row,
    scale_log2,
    HEADS: tl.constexpr,
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
    CHECK: tl.constexpr,
):
    """Grid (most_tiles(...), ceil(HEADS / BLOCK_M)); queries are packed as in `paged_prefill`."""
    heads: tl.constexpr = min(HEADS, BLOCK_M)
    tile_tokens: tl.constexpr = BLOCK_M // heads
    row = row_of_tile(query_start, rows, tl.program_id(0), tile_tokens)
    start = tl.load(query_start + row)
    end = tl.load(query_start + row + 1)
    first_token = start + (tl.program_id(0) - start // tile_tokens - row) * tile_tokens
    if (first_token >= end) | (end - start < shortest_row):
        return
    place = tl.arange(0, BLOCK_M)
    token = first_token + place // heads
    head = tl.program_id(1) * heads + place % heads
    asks = (place < tile_tokens * heads) & (token < end) & (head < HEADS)
    context = tl.load(context_lens + row)
    too_long = context > table_width * PAGE
    room = tl.minimum(context, table_width * PAGE)
    position = tl.load(positions + token, mask=asks, other=-1).to(tl.int32)
    last = tl.maximum(tl.minimum(position, room - 1), -1)
    end_key = tl.max(last, 0) + 1
    table_row = block_table + row.to(tl.int64) * table_width * 2
    if CHECK:
        found = mark_foreign(table_row, 0, tl.cdiv(end_key, PAGE), page_tags, num_pages, too_long, verdict + row)
        if found != 0:
            end_key = 0
    places = token.to(tl.int64) * HEADS + head
    query_latent, query_rope = load_queries(query, places * (LATENT + ROPE), asks, LATENT, BLOCK_L, ROPE, BLOCK_R)
    _, total, values = attend_latent(
        query_latent,
        query_rope,
        last,
        table_row,
        0,
        tl.minimum(seen_by_all(last, asks, BLOCK_N), end_key),
        end_key,
        pages,
        scale,
        num_pages,
        scale_log2,
        LATENT,
        BLOCK_L,
        ROPE,
        BLOCK_R,
        PAGE,
        BLOCK_M,
        BLOCK_N,
        FP8,
        NATIVE,
        SCALES,
        2 if tile_tokens > 1 else 1,
    )
    latent = tl.arange(0, BLOCK_L)
    values = tl.where((last >= 0)[:, None] & (end_key > 0), values / total[:, None], 0.0)
    if not CHECK:
        values = tl.where(too_long, float("nan"), values)
    real = asks[:, None] & (latent < LATENT)[None, :]
    tl.store(out + places[:, None] * LATENT + latent[None, :], values, mask=real)
