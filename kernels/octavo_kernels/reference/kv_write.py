"""KV write: round new keys and values to the stored type and put them into pages found through the block table.

It stores nothing where the page is not the row's to write: the id outside the pool, the page's tag not the pair's,
the page's writer not the row's nonce, or a slot outside the row's pages or below the page's fill mark (pages are
append-only). Each refusal marks the row's verdict word, which can then no longer become clean.

The fill mark of a page says how many of its tokens **every** layer holds, so only the write of the last layer
advances it; all layers of a step see the mark as it was before the step.

A scale per tensor or per head is given. A scale per token (and head) is found here, from the row that is stored, and
written beside it: `fp8.dynamic_scale`. It is part of the page: where the store is refused, so is the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.errors import require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.formats.place import fill_of, filled_to, require_page_size
from octavo_kernels.formats.verdict import Finding, word_of
from octavo_kernels.reference.block_table import clamp_pages, in_pool
from octavo_kernels.step_inputs import check_pages, check_rows_and_scale


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
    page_places: torch.Tensor,
    verdict: torch.Tensor,
    last_layer: bool,
) -> None:
    """Store `key / k_scale` and `value / v_scale` of T new tokens; change pages, fill marks and verdict in place.

    key and value [T, kv_heads, D] float32; pages [num_pages, page_size, kv_heads, D] bfloat16 or float8_e4m3fn
    (nearest even, FP8 saturating); scales float32 [] or [kv_heads], or with FP8 pages
    [num_pages, page_size, kv_heads], which are written; block_table [R, P, 2] int32 of (page, tag); token_rows and
    positions [T] int64; nonces and verdict [R] int32; page records [num_pages] int32
    (`page_places` as in `formats.place`). Raises KernelInputError for
    shapes and dtypes. Two tokens for one slot in one call are not allowed.
    """
    check_pages(k_pages, v_pages, k_scale, v_scale)
    require_dtype("key", key, torch.float32)
    require_dtype("value", value, torch.float32)
    require_shape("key", key, positions.shape[0], *k_pages.shape[2:])
    require_shape("value", value, *key.shape)
    targets = _accepted(
        page_size=k_pages.shape[1],
        block_table=block_table,
        token_rows=token_rows,
        positions=positions,
        nonces=nonces,
        page_tags=page_tags,
        page_writers=page_writers,
        page_places=page_places,
        verdict=verdict,
    )
    _store(key, k_pages, k_scale, targets)
    _store(value, v_pages, v_scale, targets)
    if last_layer:
        _advance(page_places, targets)


def mla_write(
    row: torch.Tensor,
    *,
    pages: torch.Tensor,
    scale: torch.Tensor,
    block_table: torch.Tensor,
    token_rows: torch.Tensor,
    positions: torch.Tensor,
    nonces: torch.Tensor,
    page_tags: torch.Tensor,
    page_writers: torch.Tensor,
    page_places: torch.Tensor,
    verdict: torch.Tensor,
    last_layer: bool,
) -> None:
    """Store `row / scale` of T new tokens in MLA pages, with the refusals of `kv_write`.

    row [T, L + R] float32, the latent and the rotated key; pages [num_pages, page_size, L + R] bfloat16 or
    float8_e4m3fn; scale float32 [], or with FP8 pages [num_pages, page_size], which is written; the rest as in
    `kv_write`.
    """
    check_rows_and_scale(pages, scale)
    require_dtype("row", row, torch.float32)
    require_shape("row", row, positions.shape[0], pages.shape[2])
    targets = _accepted(
        page_size=pages.shape[1],
        block_table=block_table,
        token_rows=token_rows,
        positions=positions,
        nonces=nonces,
        page_tags=page_tags,
        page_writers=page_writers,
        page_places=page_places,
        verdict=verdict,
    )
    _store(row, pages, scale, targets)
    if last_layer:
        _advance(page_places, targets)


@dataclass(frozen=True)
class _Targets:
    """Where the accepted ones of T tokens go."""

    accepted: torch.Tensor
    """[T] bool; the other two have an entry for each True."""
    pages: torch.Tensor
    slots: torch.Tensor


def _accepted(
    *,
    page_size: int,
    block_table: torch.Tensor,
    token_rows: torch.Tensor,
    positions: torch.Tensor,
    nonces: torch.Tensor,
    page_tags: torch.Tensor,
    page_writers: torch.Tensor,
    page_places: torch.Tensor,
    verdict: torch.Tensor,
) -> _Targets:
    """Find each token's place and mark the rows whose stores are refused."""
    require_page_size(page_size)
    require_dtype("block_table", block_table, torch.int32)
    require_shape("block_table", block_table, verdict.shape[0], None, 2)
    logical, slots = positions.div(page_size, rounding_mode="floor"), positions.remainder(page_size)
    inside = (logical >= 0) & (logical < block_table.shape[1])
    pairs = block_table[token_rows, logical.clamp(0, block_table.shape[1] - 1)]
    pages = clamp_pages(pairs[:, 0], page_tags.shape[0])
    refusals = {
        Finding.RANGE: inside & ~in_pool(pairs[:, 0], page_tags.shape[0]),
        Finding.TAG: page_tags[pages] != pairs[:, 1],
        Finding.WRITER: page_writers[pages] != nonces[token_rows],
        Finding.SLOT: ~inside | (slots < fill_of(page_places[pages])),
    }
    for finding, refused in refusals.items():
        rows = token_rows[refused]
        verdict[rows] |= word_of(finding)
    accepted = ~torch.stack(tuple(refusals.values())).any(dim=0)
    return _Targets(accepted, pages[accepted], slots[accepted])


def _store(rows: torch.Tensor, pages: torch.Tensor, scale: torch.Tensor, targets: _Targets) -> None:
    """Rows [T, ..., D] into pages [num_pages, page_size, ..., D]; a scale that has all of these but D is written."""
    rows = rows[targets.accepted]
    factor = scale
    if scale.ndim == pages.ndim - 1:
        factor = fp8.dynamic_scale(rows)
        scale[targets.pages, targets.slots] = factor
    scaled = rows / factor.unsqueeze(-1)
    pages[targets.pages, targets.slots] = fp8.encode(scaled) if pages.dtype == fp8.DTYPE else scaled.to(pages.dtype)


def _advance(page_places: torch.Tensor, targets: _Targets) -> None:
    filled = filled_to(page_places[targets.pages], (targets.slots + 1).to(page_places.dtype))
    page_places.scatter_reduce_(0, targets.pages, filled, reduce="amax")
