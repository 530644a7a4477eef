"""Causal attention over a paged KV cache: decode and chunked prefill, grouped query heads, BF16 or FP8 pages.

A row's keys and values are read through its block table, decoded exactly to float32 and multiplied by their scale;
products, softmax and sums are float32. A query at position p sees the keys 0..p.

The same token gets the same bits alone, batched or chunked: every product has the shape
[QUERY_TILE, head_dim] x [head_dim, KEY_TILE], the maximum of a row does not depend on order, and the partial sums of
the key tiles are added from left to right, where tiles beyond a token's position add exact zeros.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.reference.block_table import clamp_pages

QUERY_TILE = 32
"""Rows of a score product: query tokens times the query heads of one KV head."""
KEY_TILE = 128
"""Keys of a score product, whatever the page size."""


def paged_attention(
    query: torch.Tensor,
    *,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    positions: torch.Tensor,
    softmax_scale: float,
) -> torch.Tensor:
    """Attend from new tokens to their request's cached tokens; the new tokens' own keys are in the cache already.

    query [T, heads, D] float32; k_pages and v_pages [num_pages, page_size, kv_heads, D] bfloat16 or float8_e4m3fn;
    scales [] float32; block_table [R, P, 2] int32 of (page, tag); query_start [R + 1] int32; context_lens [R] int32;
    positions [T] int64. Result [T, heads, D] float32. Page ids outside the pool read the NULL page: flagging them is
    the integrity check's. Raises KernelInputError for shapes, dtypes and a context that the table cannot hold.
    """
    _check(query, k_pages, v_pages, block_table, context_lens)
    out = torch.zeros_like(query)
    starts, contexts = query_start.tolist(), context_lens.tolist()
    for row, context in enumerate(contexts):
        tokens = slice(starts[row], starts[row + 1])
        if tokens.start == tokens.stop or context == 0:
            continue
        slots = _slots(block_table[row, :, 0], context, num_pages=k_pages.shape[0], page_size=k_pages.shape[1])
        keys = _gather(k_pages, slots, context) * k_scale
        values = _gather(v_pages, slots, context) * v_scale
        out[tokens] = _attend(query[tokens], keys, values, positions[tokens], softmax_scale)
    return out


def _check(
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
) -> None:
    require_dtype("query", query, torch.float32)
    require_dtype("k_pages", k_pages, torch.bfloat16, fp8.DTYPE)
    require_dtype("v_pages", v_pages, k_pages.dtype)
    require_dtype("block_table", block_table, torch.int32)
    require_shape("k_pages", k_pages, None, None, None, query.shape[2])
    require_shape("v_pages", v_pages, *k_pages.shape)
    require_shape("block_table", block_table, context_lens.shape[0], None, 2)
    if query.shape[1] % k_pages.shape[2]:
        raise KernelInputError(f"query has {query.shape[1]} heads, needed a multiple of {k_pages.shape[2]} KV heads")
    room = block_table.shape[1] * k_pages.shape[1]
    if context_lens.numel() and int(context_lens.max()) > room:
        raise KernelInputError(f"context_lens reaches {int(context_lens.max())}, the block table holds {room} tokens")


def _slots(page_ids: torch.Tensor, context: int, *, num_pages: int, page_size: int) -> torch.Tensor:
    """Flat cache slots of positions 0 up to `context` rounded up to whole key tiles: [tiles * KEY_TILE] int64."""
    positions = torch.arange(-(-context // KEY_TILE) * KEY_TILE, device=page_ids.device)
    held = (positions // page_size).clamp_(max=page_ids.shape[0] - 1)
    return clamp_pages(page_ids[held], num_pages) * page_size + positions % page_size


def _gather(pages: torch.Tensor, slots: torch.Tensor, context: int) -> torch.Tensor:
    """Float32 rows [slots, kv_heads, D]; rows from `context` on are zero, whatever the slots hold."""
    flat = pages.flatten(0, 1)
    if pages.dtype == fp8.DTYPE:
        rows = fp8.decode(flat.view(torch.uint8)[slots].view(fp8.DTYPE))
    else:
        rows = flat[slots].float()
    rows[context:] = 0
    return rows


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, softmax_scale: float
) -> torch.Tensor:
    """One request: query [n, heads, D], keys and values [tiles * KEY_TILE, kv_heads, D], positions [n]."""
    count, heads, dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    rows = query.view(count, kv_heads, group, dim).transpose(0, 1).reshape(kv_heads, count * group, dim)
    row_positions = positions.repeat_interleave(group)
    padding = -rows.shape[1] % QUERY_TILE
    rows, row_positions = F.pad(rows, (0, 0, 0, padding)), F.pad(row_positions, (0, padding))
    # [kv_heads, tiles, KEY_TILE, D]
    keys = keys.transpose(0, 1).reshape(kv_heads, -1, KEY_TILE, dim)
    values = values.transpose(0, 1).reshape(kv_heads, -1, KEY_TILE, dim)
    out = torch.empty_like(rows)
    for start in range(0, rows.shape[1], QUERY_TILE):
        tile = slice(start, start + QUERY_TILE)
        out[:, tile] = _attend_tile(rows[:, tile] * softmax_scale, keys, values, row_positions[tile])
    out = out[:, : count * group].view(kv_heads, count, group, dim)
    return out.transpose(0, 1).reshape(count, heads, dim)


def _attend_tile(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """query [kv_heads, QUERY_TILE, D], scaled; keys, values [kv_heads, tiles, KEY_TILE, D]; positions [QUERY_TILE]."""
    tiles = keys.shape[1]
    scores = torch.matmul(query[:, None], keys.transpose(2, 3))
    key_positions = torch.arange(tiles * KEY_TILE, device=query.device).view(tiles, 1, KEY_TILE)
    scores = scores.masked_fill(key_positions > positions[:, None], float("-inf"))
    largest = scores.amax(dim=(1, 3), keepdim=True)
    shares = torch.exp(scores - largest)
    parts = torch.matmul(shares, values)
    sums = shares.sum(dim=3, keepdim=True)
    part, total = parts[:, 0], sums[:, 0]
    for tile in range(1, tiles):
        part, total = part + parts[:, tile], total + sums[:, tile]
    return part / total
