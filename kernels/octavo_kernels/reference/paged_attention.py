"""Causal attention over a paged KV cache: decode and chunked prefill, grouped query heads, BF16 or FP8 pages.

A row's keys and values are read through its block table, decoded exactly to float32 and multiplied by their scale;
products, softmax and sums are float32. A query at position p sees the keys 0..p.

The same token gets the same bits alone, batched or chunked: every product has the shape
[QUERY_TILE, head_dim] x [head_dim, KEY_TILE], the maximum of a row does not depend on order, and the partial sums of
the key tiles are added from left to right, where tiles beyond a token's position add exact zeros. Rows with equally
many query tiles are computed together, which changes only how many such products one call does.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.reference.block_table import clamp_pages

QUERY_TILE = 16
"""Rows of a score product: query tokens times the query heads of one KV head."""
KEY_TILE = 128
"""Keys of a score product, whatever the page size."""
SCRATCH_ELEMENTS = 1 << 22
"""Keys, or scores, that one step of the computation holds, in float32 elements (16 MiB); at least one row or tile."""

FARTHEST = torch.finfo(torch.float32).max
"""Taken off the scores of hidden keys."""
LEAST_EXPONENT = -87.0
"""exp of this is 1.6e-38, the smallest normal float32 and nothing beside the largest share, which is 1."""


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
    kv_heads, dim = k_pages.shape[2:]
    group = query.shape[1] // kv_heads
    grouped = query.view(query.shape[0], kv_heads, group, dim)
    out = torch.zeros_like(grouped)
    starts, contexts = query_start.tolist(), context_lens.tolist()
    for rows, tiles in _row_groups(starts, contexts, group, kv_heads * dim):
        tokens, heads, real = _query_places(query_start[rows], query_start[1:][rows], group, tiles)
        context = max(contexts[row] for row in rows)
        slots = _slots(block_table[rows, :, 0], context, num_pages=k_pages.shape[0], page_size=k_pages.shape[1])
        written = [contexts[row] for row in rows]
        attended = _attend(
            grouped[tokens, :, heads] * softmax_scale,
            _gather(k_pages, slots, written).mul_(k_scale),
            _gather(v_pages, slots, written).mul_(v_scale),
            positions[tokens],
        )
        out[tokens[real], :, heads[real]] = attended[real]
    return out.view_as(query)


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
    require_shape("query", query, None, None, None)
    require_shape("k_pages", k_pages, None, None, None, query.shape[2])
    require_shape("v_pages", v_pages, *k_pages.shape)
    require_shape("block_table", block_table, context_lens.shape[0], None, 2)
    if query.shape[1] % k_pages.shape[2]:
        raise KernelInputError(f"query has {query.shape[1]} heads, needed a multiple of {k_pages.shape[2]} KV heads")
    room = block_table.shape[1] * k_pages.shape[1]
    if context_lens.numel() and int(context_lens.max()) > room:
        raise KernelInputError(f"context_lens reaches {int(context_lens.max())}, the block table holds {room} tokens")


def _row_groups(
    starts: list[int], contexts: list[int], group: int, elements_per_key: int
) -> Iterator[tuple[list[int], int]]:
    """Neighbouring rows with equally many query tiles whose keys fit the scratch, and that number of tiles."""
    rows: list[int] = []
    tiles, longest = 0, 0
    for row, context in enumerate(contexts):
        needed = -(-(starts[row + 1] - starts[row]) * group // QUERY_TILE) if context else 0
        wider = max(longest, context + KEY_TILE)
        if rows and (needed != tiles or (len(rows) + 1) * wider * elements_per_key > SCRATCH_ELEMENTS):
            yield rows, tiles
            rows, wider = [], context + KEY_TILE
        if needed:
            rows, tiles, longest = [*rows, row], needed, wider
    if rows:
        yield rows, tiles


def _query_places(
    starts: torch.Tensor, ends: torch.Tensor, group: int, tiles: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each of the B rows and tiles * QUERY_TILE tile rows: token, head within its group, and whether it is real.

    All [B, tiles * QUERY_TILE]; tile rows past the row's last query repeat its last token.
    """
    place = torch.arange(tiles * QUERY_TILE, device=starts.device).expand(starts.shape[0], -1)
    tokens = starts[:, None].long() + place // group
    last = ends[:, None].long() - 1
    return torch.minimum(tokens, last), place % group, tokens <= last


def _slots(page_ids: torch.Tensor, context: int, *, num_pages: int, page_size: int) -> torch.Tensor:
    """Flat cache slots of positions 0 up to `context`, rounded up to whole key tiles: [B, tiles * KEY_TILE] int64."""
    positions = torch.arange(-(-context // KEY_TILE) * KEY_TILE, device=page_ids.device)
    held = (positions // page_size).clamp_(max=page_ids.shape[1] - 1)
    return clamp_pages(page_ids[:, held], num_pages) * page_size + positions % page_size


def _gather(pages: torch.Tensor, slots: torch.Tensor, written: list[int]) -> torch.Tensor:
    """Float32 rows [B, keys, kv_heads, D] of flat slots [B, keys]; zero from `written` on, whatever the slots hold."""
    flat = pages.flatten(0, 1)
    if pages.dtype == fp8.DTYPE:
        rows = fp8.decode(flat.view(torch.uint8)[slots].view(fp8.DTYPE))
    else:
        rows = flat[slots].float()
    for row, count in zip(rows, written, strict=True):
        row[count:] = 0
    return rows


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """B rows: scaled query [B, S, kv_heads, D], keys and values [B, L, kv_heads, D], positions [B, S]; as query."""
    count, _, kv_heads, dim = query.shape
    query = query.view(count, -1, QUERY_TILE, kv_heads, dim).transpose(2, 3).contiguous()
    keys = keys.view(count, -1, KEY_TILE, kv_heads, dim).permute(0, 3, 1, 2, 4).contiguous()
    values = values.view(count, -1, KEY_TILE, kv_heads, dim).permute(0, 3, 1, 2, 4).contiguous()
    positions = positions.view(count, -1, 1, 1, QUERY_TILE, 1)
    out = torch.empty_like(query)
    tiles_at_once = max(1, SCRATCH_ELEMENTS // (keys.numel() * max(1, QUERY_TILE // dim)))
    for start in range(0, query.shape[1], tiles_at_once):
        tiles = slice(start, start + tiles_at_once)
        out[:, tiles] = _attend_tiles(query[:, tiles], keys, values, positions[:, tiles])
    return out.transpose(2, 3).reshape(count, -1, kv_heads, dim)


def _attend_tiles(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Softmax over all keys of query tiles.

    query [B, n, kv_heads, QUERY_TILE, D]; keys and values [B, kv_heads, tiles, KEY_TILE, D]; positions
    [B, n, 1, 1, QUERY_TILE, 1]. Result as query.
    """
    count, n, kv_heads, _, dim = query.shape
    tiles = keys.shape[2]
    batch = (count, n, kv_heads, tiles)
    key_positions = torch.arange(tiles * KEY_TILE, device=query.device).view(tiles, 1, KEY_TILE)
    visible = (key_positions <= positions).float()
    # Reshaping makes every product one of contiguous matrices, however many there are.
    queries = query[:, :, :, None].expand(*batch, QUERY_TILE, dim).reshape(-1, QUERY_TILE, dim)
    keys = keys[:, None].expand(*batch, KEY_TILE, dim).reshape(-1, KEY_TILE, dim)
    values = values[:, None].expand(*batch, KEY_TILE, dim).reshape(-1, KEY_TILE, dim)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(*batch, QUERY_TILE, KEY_TILE)
    scores += (visible - 1.0) * FARTHEST
    largest = scores.amax(dim=(3, 5), keepdim=True)
    # exp is ten times slower where it underflows, so hidden keys are cut off and then multiplied by zero.
    shares = (scores - largest).clamp_(min=LEAST_EXPONENT).exp_().mul_(visible)
    parts = torch.bmm(shares.view(-1, QUERY_TILE, KEY_TILE), values).view(*batch, QUERY_TILE, dim)
    sums = shares.sum(dim=5, keepdim=True)
    part, total = parts[:, :, :, 0], sums[:, :, :, 0]
    for tile in range(1, tiles):
        part, total = part + parts[:, :, :, tile], total + sums[:, :, :, tile]
    return part / total
