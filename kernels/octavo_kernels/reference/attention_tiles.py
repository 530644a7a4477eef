"""Causal softmax attention over rows read through a block table, in tiles of one shape: what GQA and MLA share.

The same token gets the same bits alone, batched or chunked: every product has the shape
[QUERY_TILE, key_dim] x [key_dim, KEY_TILE], the maximum of a row does not depend on order, and the partial sums of
the key tiles are added from left to right, where tiles beyond a token's position add exact zeros. Rows with equally
many query tiles are computed together, which changes only how many such products one call does.

A key or value that is NaN or infinite shows in exactly the tokens that see it, as IEEE arithmetic has it: a NaN key
makes the whole head NaN, a NaN or infinite value only its own element. So what lies in slots beyond a token's position,
written or not, changes no bit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from octavo_kernels.formats import fp8
from octavo_kernels.reference.block_table import clamp_pages

QUERY_TILE = 16
"""Rows of a score product: query tokens times the query heads of one KV head."""
KEY_TILE = 128
"""Keys of a score product, whatever the page size."""
SCRATCH_ELEMENTS = 1 << 22
"""Keys, or scores, that one step of the computation holds, in float32 elements (16 MiB); at least one row or tile."""

LEAST_EXPONENT = -87.0
"""exp of this is 1.6e-38, the smallest normal float32 and nothing beside the largest share, which is 1."""


ReadRows = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Flat slots [B, L] to float32 keys [B, L, kv_heads, D] and values [B, L, kv_heads, Dv]."""


def attend_step(
    query: torch.Tensor,
    read_rows: ReadRows,
    *,
    kv_heads: int,
    value_dim: int,
    num_pages: int,
    page_size: int,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Attend from new tokens: scaled query [T, heads, D] float32, result [T, heads, value_dim] float32.

    Query heads h * heads / kv_heads and the following belong to KV head h; a query at position p sees the keys 0..p.
    """
    tokens_in_all, query_heads, dim = query.shape
    group = query_heads // kv_heads
    grouped = query.view(tokens_in_all, kv_heads, group, dim)
    out = query.new_zeros((tokens_in_all, kv_heads, group, value_dim))
    starts, contexts = query_start.tolist(), context_lens.tolist()
    for rows, tiles in _row_groups(starts, contexts, group, kv_heads * dim):
        tokens, heads, real = _query_places(query_start[rows], query_start[1:][rows], group, tiles)
        context = max(contexts[row] for row in rows)
        slots = _slots(block_table[rows, :, 0], context, num_pages=num_pages, page_size=page_size)
        attended = _attend(grouped[tokens, :, heads], *read_rows(slots), positions[tokens])
        out[tokens[real], :, heads[real]] = attended[real]
    return out.view(tokens_in_all, query_heads, value_dim)


def gather(pages: torch.Tensor, scale: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Float32 rows [B, L, kv_heads, D] of flat slots [B, L], scaled.

    pages [num_pages, page_size, kv_heads, D]; scale [], [kv_heads] or [num_pages, page_size, kv_heads].
    """
    flat = pages.flatten(0, 1)
    if pages.dtype == fp8.DTYPE:
        rows = fp8.decode(flat.view(torch.uint8)[slots].view(fp8.DTYPE))
    else:
        rows = flat[slots].float()
    rows *= scale.flatten(0, 1)[slots].unsqueeze(-1) if scale.ndim == 3 else scale.unsqueeze(-1)
    return rows


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


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """B rows: scaled query [B, S, kv_heads, D], keys and values [B, L, kv_heads, D or Dv], positions [B, S].

    Result [B, S, kv_heads, Dv].
    """
    count, _, kv_heads, dim = query.shape
    query = query.view(count, -1, QUERY_TILE, kv_heads, dim).transpose(2, 3).contiguous()
    positions = positions.view(count, -1, 1, QUERY_TILE, 1)
    # A sum is the cheapest look at all of them; where finite ones overflow it, the long way gives the same.
    all_numbers = bool(values.sum().isfinite())
    key_tiles = _in_key_tiles(keys)
    value_tiles = _in_key_tiles(values if all_numbers else values.nan_to_num(0.0, 0.0, 0.0))
    out = query.new_empty((*query.shape[:-1], values.shape[-1]))
    tiles_at_once = max(1, SCRATCH_ELEMENTS // (keys.numel() * max(1, QUERY_TILE // dim)))
    for start in range(0, query.shape[1], tiles_at_once):
        tiles = slice(start, start + tiles_at_once)
        out[:, tiles] = _attend_tiles(query[:, tiles], key_tiles, value_tiles, positions[:, tiles])
    if not all_numbers:
        out += _no_numbers_seen(values, positions)
    return out.transpose(2, 3).reshape(count, -1, kv_heads, values.shape[-1])


def _in_key_tiles(rows: torch.Tensor) -> torch.Tensor:
    """[B, L, kv_heads, D] as [B, kv_heads, tiles, KEY_TILE, D]."""
    count, _, kv_heads, dim = rows.shape
    return rows.reshape(count, -1, KEY_TILE, kv_heads, dim).permute(0, 3, 1, 2, 4).contiguous()


def _attend_tiles(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Softmax over all keys of query tiles.

    query [B, n, kv_heads, QUERY_TILE, D]; keys and finite values [B, kv_heads, tiles, KEY_TILE, D or Dv]; positions
    [B, n, 1, QUERY_TILE, 1]. Result [B, n, kv_heads, QUERY_TILE, Dv].
    """
    count, n, kv_heads, _, dim = query.shape
    tiles, value_dim = values.shape[2], values.shape[4]
    batch = (count, n, kv_heads, tiles)
    key_positions = torch.arange(tiles * KEY_TILE, device=query.device).view(tiles, 1, KEY_TILE)
    visible = key_positions <= positions.unsqueeze(2)
    # Reshaping makes every product one of contiguous matrices, however many there are.
    queries = query[:, :, :, None].expand(*batch, QUERY_TILE, dim).reshape(-1, QUERY_TILE, dim)
    keys = keys[:, None].expand(*batch, KEY_TILE, dim).reshape(-1, KEY_TILE, dim)
    values = values[:, None].expand(*batch, KEY_TILE, value_dim).reshape(-1, KEY_TILE, value_dim)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(*batch, QUERY_TILE, KEY_TILE)
    scores.masked_fill_(~visible, float("-inf"))
    largest = scores.amax(dim=(3, 5), keepdim=True)
    # exp is ten times slower where it underflows, so hidden keys are cut off and then multiplied by zero.
    shares = (scores - largest).clamp_(min=LEAST_EXPONENT).exp_().mul_(visible)
    parts = torch.bmm(shares.view(-1, QUERY_TILE, KEY_TILE), values).view(*batch, QUERY_TILE, value_dim)
    sums = shares.sum(dim=5, keepdim=True)
    part, total = parts[:, :, :, 0], sums[:, :, :, 0]
    for tile in range(1, tiles):
        part, total = part + parts[:, :, :, tile], total + sums[:, :, :, tile]
    return part / total


def _no_numbers_seen(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """What NaN and infinite values add: values [B, L, kv_heads, Dv] to [B, n, kv_heads, QUERY_TILE, Dv].

    In a product they would spoil the tokens that do not see them as well, because 0 * NaN is NaN.
    """
    added = values.new_zeros(())
    for value, hits in ((torch.nan, values.isnan()), (torch.inf, values.isposinf()), (-torch.inf, values.isneginf())):
        # Whether a query sees one follows from the first.
        first = torch.where(hits.any(dim=1), hits.int().argmax(dim=1), torch.iinfo(torch.int64).max)
        added = added + torch.where(first[:, None, :, None] <= positions, value, 0.0)
    return added
