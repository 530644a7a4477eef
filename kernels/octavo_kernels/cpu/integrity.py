"""The integrity checks in C: the words of `reference.integrity`, bit for bit."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.place import require_page_size


def check_rows(
    *,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    nonces: torch.Tensor,
    bindings: torch.Tensor,
    page_tags: torch.Tensor,
    page_places: torch.Tensor,
    page_size: int,
    verdict: torch.Tensor,
) -> None:
    """See `reference.integrity.check_rows`; all tensors contiguous."""
    rows = verdict.shape[0]
    _check_step(block_table, context_lens, page_places, page_size, verdict)
    for name, of_rows, size in (("query_start", query_start, rows + 1), ("nonces", nonces, rows)):
        require_dtype(name, of_rows, torch.int32)
        require_shape(name, of_rows, size)
    require_dtype("bindings", bindings, torch.int64)
    require_shape("bindings", bindings, rows)
    require_dtype("page_tags", page_tags, torch.int32)
    require_shape("page_tags", page_tags, page_places.shape[0])
    require_contiguous(query_start=query_start, nonces=nonces, bindings=bindings, page_tags=page_tags)
    if rows:
        library.load().call(
            "check_rows",
            *(block_table, query_start, context_lens, nonces, bindings, page_tags, page_places, verdict),
            *(rows, block_table.shape[1], page_places.shape[0], page_size),
        )


def conclude(
    *,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    page_places: torch.Tensor,
    page_size: int,
    step: int,
    verdict: torch.Tensor,
) -> None:
    """See `reference.integrity.conclude`; all tensors contiguous."""
    _check_step(block_table, context_lens, page_places, page_size, verdict)
    if not 1 <= step < 1 << 31:
        raise KernelInputError(f"step is {step}, needed 1 to 2**31 - 1: a verdict word holds it")
    rows = verdict.shape[0]
    if rows:
        library.load().call(
            "conclude",
            *(block_table, context_lens, page_places, verdict),
            *(rows, block_table.shape[1], page_places.shape[0], page_size, step),
        )


def _check_step(
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    page_places: torch.Tensor,
    page_size: int,
    verdict: torch.Tensor,
) -> None:
    require_dtype("verdict", verdict, torch.int32)
    require_shape("verdict", verdict, None)
    require_dtype("block_table", block_table, torch.int32)
    require_shape("block_table", block_table, verdict.shape[0], None, 2)
    require_dtype("context_lens", context_lens, torch.int32)
    require_shape("context_lens", context_lens, verdict.shape[0])
    require_dtype("page_places", page_places, torch.int32)
    require_shape("page_places", page_places, None)
    require_contiguous(verdict=verdict, block_table=block_table, context_lens=context_lens, page_places=page_places)
    require_page_size(page_size)
    if not page_places.shape[0]:
        raise KernelInputError("there are no pages, needed the NULL page")
