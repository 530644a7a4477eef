# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Prefill attention over pages: many query tokens of a row at once, causal, rows of any length in one batch.

A program takes BLOCK_M queries: consecutive tokens of one row times the query heads of one KV head, so that every key
is read once for all of them. Which row a program works on follows from query_start on the device; the number of
programs is bounded by T, R and the group alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.triton.attend_pages import attend, mark_foreign, seen_by_all

ROWS_AT_ONCE = tl.constexpr(128)
"""Rows of the batch that the search for a program's row looks at in one go."""


def most_tiles(tokens: int, rows: int, tile_tokens: int) -> int:
    """Programs that suffice for `tokens` query tokens in `rows` rows, however they are spread: as `row_of_tile`."""
    return tokens // tile_tokens + rows


@triton.jit
def row_of_tile(query_start, rows, tile, TILE_TOKENS: tl.constexpr):
    """The row that tile number `tile` belongs to.

    Row r's tiles are numbered from query_start[r] // TILE_TOKENS + r: that leaves room for its last, partly filled one.
    """
    before = 0
    for first in range(0, rows, ROWS_AT_ONCE):
        row = first + tl.arange(0, ROWS_AT_ONCE)
        start = tl.load(query_start + row, mask=row < rows, other=0)
        before += tl.sum(((row < rows) & (start // TILE_TOKENS + row <= tile)).to(tl.int32), 0)
    return before - 1


@triton.jit(do_not_specialize=("rows", "table_width", "num_pages", "shortest_row"))
def paged_prefill(
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
    rows,
    table_width,
    num_pages,
    shortest_row,
    scale_log2,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    K_SCALES: tl.constexpr,
    V_SCALES: tl.constexpr,
    CHECK: tl.constexpr,
):
    """Grid (most_tiles(...), kv_heads * ceil(GROUP / BLOCK_M)). Rows below `shortest_row` tokens are left alone."""
    heads: tl.constexpr = min(GROUP, BLOCK_M)
    tile_tokens: tl.constexpr = BLOCK_M // heads
    blocks: tl.constexpr = (GROUP + heads - 1) // heads
    row = row_of_tile(query_start, rows, tl.program_id(0), tile_tokens)
    start = tl.load(query_start + row)
    end = tl.load(query_start + row + 1)
    first_token = start + (tl.program_id(0) - start // tile_tokens - row) * tile_tokens
    if (first_token >= end) | (end - start < shortest_row):
        return
    kv_head = tl.program_id(1) // blocks
    place = tl.arange(0, BLOCK_M)
    token = first_token + place // heads
    member = (tl.program_id(1) % blocks) * heads + place % heads
    asks = (place < tile_tokens * heads) & (token < end) & (member < GROUP)
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
    dims = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + member
    offsets = (token.to(tl.int64) * KV_HEADS * GROUP + head)[:, None] * DIM + dims[None, :]
    real = asks[:, None] & (dims < DIM)[None, :]
    asked = tl.load(query + offsets, mask=real, other=0.0).to(tl.bfloat16)
    _, total, values = attend(
        asked,
        last,
        table_row,
        0,
        tl.minimum(seen_by_all(last, asks, BLOCK_N), end_key),
        end_key,
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
        2 if tile_tokens > 1 else 1,
    )
    values = tl.where((last >= 0)[:, None] & (end_key > 0), values / total[:, None], 0.0)
    if not CHECK:
        values = tl.where(too_long, float("nan"), values)
    tl.store(out + offsets, values, mask=real)
