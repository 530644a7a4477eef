"""What every attention launcher checks before a launch, and how it hands pages over."""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.triton.attend_pages import PER_HEAD, PER_TOKEN, WHOLE_TENSOR


def check_step(
    query: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    positions: torch.Tensor,
    page_tags: torch.Tensor | None,
    verdict: torch.Tensor | None,
    num_pages: int,
) -> None:
    """Raise KernelInputError for a step's tensors of wrong dtype, shape or layout; reads no element of them."""
    require_shape("query", query, None, None, None)
    require_dtype("query", query, torch.float32, torch.bfloat16)
    require_shape("positions", positions, query.shape[0])
    require_dtype("positions", positions, torch.int64)
    require_shape("block_table", block_table, None, None, 2)
    require_dtype("block_table", block_table, torch.int32)
    rows, table_width, _ = block_table.shape
    if rows and not table_width:
        raise KernelInputError("block_table has rows of no pages, needed at least one")
    require_shape("query_start", query_start, rows + 1)
    require_dtype("query_start", query_start, torch.int32)
    require_shape("context_lens", context_lens, rows)
    require_dtype("context_lens", context_lens, torch.int32)
    require_contiguous(
        query=query,
        positions=positions,
        block_table=block_table,
        query_start=query_start,
        context_lens=context_lens,
    )
    if (page_tags is None) != (verdict is None):
        raise KernelInputError("page_tags and verdict belong together: one was given without the other")
    if page_tags is not None and verdict is not None:
        require_shape("page_tags", page_tags, num_pages)
        require_dtype("page_tags", page_tags, torch.int32)
        require_shape("verdict", verdict, rows)
        require_dtype("verdict", verdict, torch.int32)
        require_contiguous(page_tags=page_tags, verdict=verdict)


def as_bytes(pages: torch.Tensor) -> torch.Tensor:
    """FP8 pages as bytes, which every generation can load; BF16 pages as they are."""
    return pages.view(torch.uint8) if pages.dtype == fp8.DTYPE else pages


def scale_layout(scale: torch.Tensor) -> int:
    """How the kernels find the scale of an element."""
    return {0: WHOLE_TENSOR, 1: PER_HEAD}.get(scale.ndim, PER_TOKEN)
