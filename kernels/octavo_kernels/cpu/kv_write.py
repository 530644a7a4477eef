"""KV write in C: what is refused, the verdict words and the stored bytes are those of `reference.kv_write`."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.cpu.indices import require_within
from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.formats.place import require_page_size
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
    """See `reference.kv_write.kv_write`; all tensors contiguous."""
    check_pages(k_pages, v_pages, k_scale, v_scale)
    require_dtype("key", key, torch.float32)
    require_dtype("value", value, torch.float32)
    require_shape("key", key, positions.shape[0], *k_pages.shape[2:])
    require_shape("value", value, *key.shape)
    require_contiguous(key=key, value=value, k_pages=k_pages, v_pages=v_pages, k_scale=k_scale, v_scale=v_scale)
    _write(
        key,
        value,
        k_pages,
        v_pages,
        k_scale,
        v_scale,
        scales=(_kind(k_scale, 1), _kind(v_scale, 1)),
        block_table=block_table,
        token_rows=token_rows,
        positions=positions,
        nonces=nonces,
        page_tags=page_tags,
        page_writers=page_writers,
        page_places=page_places,
        verdict=verdict,
        last_layer=last_layer,
    )


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
    """See `reference.kv_write.mla_write`; all tensors contiguous."""
    check_rows_and_scale(pages, scale)
    require_dtype("row", row, torch.float32)
    require_shape("row", row, positions.shape[0], pages.shape[2])
    require_contiguous(row=row, pages=pages, scale=scale)
    _write(
        row,
        None,
        pages.unsqueeze(2),
        None,
        scale,
        None,
        scales=(_kind(scale, 0), 0),
        block_table=block_table,
        token_rows=token_rows,
        positions=positions,
        nonces=nonces,
        page_tags=page_tags,
        page_writers=page_writers,
        page_places=page_places,
        verdict=verdict,
        last_layer=last_layer,
    )


def _write(
    key: torch.Tensor,
    value: torch.Tensor | None,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor | None,
    *,
    scales: tuple[int, int],
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
    num_pages, page_size, heads, dim = k_pages.shape
    tokens, rows = positions.shape[0], verdict.shape[0]
    require_page_size(page_size)
    require_dtype("block_table", block_table, torch.int32)
    require_shape("block_table", block_table, rows, None, 2)
    records = {"page_tags": page_tags, "page_writers": page_writers, "page_places": page_places}
    for name, record in records.items():
        require_dtype(name, record, torch.int32)
        require_shape(name, record, num_pages)
    for name, of_rows in (("nonces", nonces), ("verdict", verdict)):
        require_dtype(name, of_rows, torch.int32)
        require_shape(name, of_rows, rows)
    for name, of_tokens in (("token_rows", token_rows), ("positions", positions)):
        require_dtype(name, of_tokens, torch.int64)
        require_shape(name, of_tokens, tokens)
    require_contiguous(
        block_table=block_table, token_rows=token_rows, positions=positions, nonces=nonces, verdict=verdict, **records
    )
    if not tokens:
        return
    if not block_table.shape[1] or not num_pages:
        raise KernelInputError(
            f"there is a block table of shape {list(block_table.shape)} and {num_pages} pages of {page_size} tokens, "
            "needed one of each"
        )
    require_within("token_rows", token_rows, rows)
    library.load().call(
        "kv_write",
        *(key, value, k_pages, v_pages, k_scale, v_scale, block_table, token_rows, positions, nonces),
        *(page_tags, page_writers, page_places, verdict, torch.empty_like(positions)),
        *(tokens, rows, block_table.shape[1], num_pages, page_size, heads, dim),
        *(int(k_pages.dtype == fp8.DTYPE), *scales, int(last_layer)),
    )


def _kind(scale: torch.Tensor, per_head: int) -> int:
    """0: one scale for all; 1: one per head; 2: one per (page, slot) and head, found by the write."""
    return 2 if scale.ndim > per_head else scale.ndim
