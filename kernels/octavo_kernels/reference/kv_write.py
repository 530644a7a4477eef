"""KV write: round new keys and values to the stored type and put them into pages found through the block table.

It stores nothing where the page is not the row's to write: the id outside the pool, the page's tag not the pair's,
the page's writer not the row's nonce, or a slot outside the row's pages or below the page's fill mark (pages are
append-only). Each refusal marks the row's verdict word, which can then no longer become clean.

The fill mark of a page says how many of its tokens **every** layer holds, so only the write of the last layer
advances it; all layers of a step see the mark as it was before the step.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.formats.verdict import Finding, word_of
from octavo_kernels.reference.block_table import clamp_pages, in_pool


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    block_table: torch.Tensor,
    token_rows: torch.Tensor,
    positions: torch.Tensor,
    nonces: torch.Tensor,
    page_tags: torch.Tensor,
    page_writers: torch.Tensor,
    page_fill: torch.Tensor,
    verdict: torch.Tensor,
    last_layer: bool,
) -> None:
    """Store `key / k_scale` and `value / v_scale` of T new tokens; change pages, fill marks and verdict in place.

    key and value [T, kv_heads, D] float32; pages [num_pages, page_size, kv_heads, D] bfloat16 or float8_e4m3fn
    (nearest even, FP8 saturating); scales [] float32; block_table [R, P, 2] int32 of (page, tag); token_rows and
    positions [T] int64; nonces and verdict [R] int32; page records [num_pages] int32. Raises KernelInputError for
    shapes and dtypes.
    """
    require_dtype("key", key, torch.float32)
    require_dtype("k_pages", k_pages, torch.bfloat16, fp8.DTYPE)
    require_shape("key", key, positions.shape[0], *k_pages.shape[2:])
    require_shape("value", value, *key.shape)
    num_pages, page_size = k_pages.shape[:2]
    logical, slots = positions.div(page_size, rounding_mode="floor"), positions.remainder(page_size)
    inside = (logical >= 0) & (logical < block_table.shape[1])
    pairs = block_table[token_rows, logical.clamp(0, block_table.shape[1] - 1)]
    pages = clamp_pages(pairs[:, 0], num_pages)
    refusals = {
        Finding.RANGE: inside & ~in_pool(pairs[:, 0], num_pages),
        Finding.TAG: page_tags[pages] != pairs[:, 1],
        Finding.WRITER: page_writers[pages] != nonces[token_rows],
        Finding.SLOT: ~inside | (slots < page_fill[pages]),
    }
    for finding, refused in refusals.items():
        rows = token_rows[refused]
        verdict[rows] |= word_of(finding)
    stored = ~torch.stack(tuple(refusals.values())).any(dim=0)
    pages, slots = pages[stored], slots[stored]
    k_pages[pages, slots] = _round(key[stored] / k_scale, k_pages.dtype)
    v_pages[pages, slots] = _round(value[stored] / v_scale, v_pages.dtype)
    if last_layer:
        page_fill.scatter_reduce_(0, pages, (slots + 1).to(page_fill.dtype), reduce="amax")


def _round(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return fp8.encode(values) if dtype == fp8.DTYPE else values.to(dtype)
