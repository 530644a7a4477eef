"""What every implementation asks of the tensors of a step: KV pages, their scales, queries and block table."""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats import fp8


def check_pages(k_pages: torch.Tensor, v_pages: torch.Tensor, k_scale: torch.Tensor, v_scale: torch.Tensor) -> None:
    """Raise KernelInputError unless the two tensors are pages of one shape and dtype, with scales that belong to it."""
    require_shape("k_pages", k_pages, None, None, None, None)
    require_dtype("k_pages", k_pages, torch.bfloat16, fp8.DTYPE)
    require_dtype("v_pages", v_pages, k_pages.dtype)
    require_shape("v_pages", v_pages, *k_pages.shape)
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        require_dtype(name, scale, torch.float32)
        if scale.ndim == 1:
            require_shape(name, scale, k_pages.shape[2])
        elif scale.ndim:
            require_shape(name, scale, *k_pages.shape[:3])
            require_dtype(f"k_pages, as {name} is per token and head,", k_pages, fp8.DTYPE)


def check_rows_and_scale(pages: torch.Tensor, scale: torch.Tensor) -> None:
    """Raise KernelInputError unless these are pages [num_pages, page_size, L + R] and a scale that belongs to them."""
    require_shape("pages", pages, None, None, None)
    require_dtype("pages", pages, torch.bfloat16, fp8.DTYPE)
    require_dtype("scale", scale, torch.float32)
    if scale.ndim:
        require_shape("scale", scale, *pages.shape[:2])
        require_dtype("pages, as scale is per token,", pages, fp8.DTYPE)


def check_step(query: torch.Tensor, block_table: torch.Tensor, context_lens: torch.Tensor, page_size: int) -> None:
    """Raise KernelInputError for a step's tensors of wrong dtype or shape, or a context that the table cannot hold."""
    require_dtype("query", query, torch.float32)
    require_shape("query", query, None, None, None)
    require_dtype("block_table", block_table, torch.int32)
    require_shape("block_table", block_table, context_lens.shape[0], None, 2)
    room = block_table.shape[1] * page_size
    if context_lens.numel() and int(context_lens.max()) > room:
        raise KernelInputError(f"context_lens reaches {int(context_lens.max())}, the block table holds {room} tokens")
