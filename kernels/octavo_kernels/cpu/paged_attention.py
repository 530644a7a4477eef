"""Paged attention in C: FP8 and BF16 pages are decoded where they lie, without a gathered copy.

The C side walks over tiles of keys with a running maximum, in float32; see `src/attention.c` for why a token's bits do
not depend on its neighbours, on chunking, or on the number of threads.
"""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.step_inputs import check_pages, check_step


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
    """See `reference.paged_attention.paged_attention`; all tensors contiguous."""
    check_pages(k_pages, v_pages, k_scale, v_scale)
    require_shape("k_pages", k_pages, None, None, None, query.shape[-1])
    if query.ndim == 3 and query.shape[1] % k_pages.shape[2]:
        raise KernelInputError(f"query has {query.shape[1]} heads, needed a multiple of {k_pages.shape[2]} KV heads")
    require_contiguous(k_pages=k_pages, v_pages=v_pages, k_scale=k_scale, v_scale=v_scale)
    return attend(
        query,
        k_pages,
        v_pages,
        k_scale,
        v_scale,
        value_dim=k_pages.shape[3],
        block_table=block_table,
        query_start=query_start,
        context_lens=context_lens,
        positions=positions,
        softmax_scale=softmax_scale,
    )


def attend(
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    *,
    value_dim: int,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    positions: torch.Tensor,
    softmax_scale: float,
) -> torch.Tensor:
    """Call the C function over checked pages [num_pages, page_size, kv_heads, D]; the first `value_dim` elements of a
    row of v_pages are the value. Result [T, heads, value_dim] float32; raises KernelInputError for the step's tensors.
    """
    num_pages, page_size, kv_heads, dim = k_pages.shape
    check_step(query, block_table, context_lens, page_size)
    tokens, heads, _ = query.shape
    rows = context_lens.shape[0]
    require_dtype("query_start", query_start, torch.int32)
    require_dtype("context_lens", context_lens, torch.int32)
    require_dtype("positions", positions, torch.int64)
    require_shape("query_start", query_start, rows + 1)
    require_shape("positions", positions, tokens)
    require_contiguous(
        query=query, block_table=block_table, query_start=query_start, context_lens=context_lens, positions=positions
    )
    if not num_pages or not page_size:
        raise KernelInputError(f"k_pages has shape {list(k_pages.shape)}, needed at least the NULL page")
    out = query.new_zeros((tokens, heads, value_dim))
    if out.numel() and rows:
        library.load().call(
            "paged_attention",
            *(query, k_pages, v_pages, k_scale, v_scale, block_table, query_start, context_lens, positions, out),
            float(softmax_scale),
            *(tokens, rows, heads, kv_heads, dim, value_dim, block_table.shape[1], num_pages, page_size),
            *(int(k_pages.dtype == fp8.DTYPE), _kind(k_scale), _kind(v_scale)),
        )
    return out


def _kind(scale: torch.Tensor) -> int:
    """`enum scales`: one for all, per head, per (page, slot, head)."""
    return min(scale.ndim, 2)
