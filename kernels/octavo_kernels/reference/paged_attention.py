"""Causal attention over a paged KV cache: decode and chunked prefill, grouped query heads, BF16 or FP8 pages.

A row's keys and values are read through its block table, decoded exactly to float32 and multiplied by their scale;
products, softmax and sums are float32, in the tiles of `attention_tiles.py`. A query at position p sees the keys 0..p.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_shape
from octavo_kernels.reference.attention_tiles import attend_step, gather
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
    """Attend from new tokens to their request's cached tokens; the new tokens' own keys are in the cache already.

    query [T, heads, D] float32; k_pages and v_pages [num_pages, page_size, kv_heads, D] bfloat16 or float8_e4m3fn;
    k_scale and v_scale float32, each [] for the whole tensor, [kv_heads], or with FP8 pages also
    [num_pages, page_size, kv_heads] as the KV write leaves it; block_table [R, P, 2] int32 of (page, tag); query_start
    [R + 1] int32; context_lens [R] int32; positions [T] int64. Result [T, heads, D] float32. Page ids outside the pool
    read the NULL page: flagging them is the integrity check's. Raises KernelInputError for shapes, dtypes and a context
    that the table cannot hold.
    """
    check_pages(k_pages, v_pages, k_scale, v_scale)
    num_pages, page_size, kv_heads, dim = k_pages.shape
    check_step(query, block_table, context_lens, page_size)
    require_shape("k_pages", k_pages, None, None, None, query.shape[2])
    if query.shape[1] % kv_heads:
        raise KernelInputError(f"query has {query.shape[1]} heads, needed a multiple of {kv_heads} KV heads")

    def read_rows(slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gather(k_pages, k_scale, slots), gather(v_pages, v_scale, slots)

    return attend_step(
        query * softmax_scale,
        read_rows,
        kv_heads=kv_heads,
        value_dim=dim,
        num_pages=num_pages,
        page_size=page_size,
        block_table=block_table,
        query_start=query_start,
        context_lens=context_lens,
        positions=positions,
    )
