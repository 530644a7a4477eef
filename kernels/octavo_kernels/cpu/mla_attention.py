"""Multi-head latent attention in C: attention with one KV head whose values are the first elements of its keys.

A tile of rows is decoded once for up to 64 pairs of token and head.
"""

from __future__ import annotations

import torch

from octavo_kernels.cpu.paged_attention import attend
from octavo_kernels.errors import KernelInputError, require_contiguous, require_shape
from octavo_kernels.step_inputs import check_rows_and_scale


def mla_attention(
    query: torch.Tensor,
    *,
    pages: torch.Tensor,
    scale: torch.Tensor,
    latent_dim: int,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    positions: torch.Tensor,
    softmax_scale: float,
) -> torch.Tensor:
    """See `reference.mla_attention.mla_attention`; all tensors contiguous."""
    check_rows_and_scale(pages, scale)
    require_shape("pages", pages, None, None, query.shape[-1])
    require_contiguous(pages=pages, scale=scale)
    if not 1 <= latent_dim <= pages.shape[2]:
        raise KernelInputError(f"latent_dim is {latent_dim}, needed 1 to {pages.shape[2]}, the elements of a row")
    rows = pages.unsqueeze(2)
    scales = scale.unsqueeze(-1) if scale.ndim else scale
    return attend(
        query,
        rows,
        rows,
        scales,
        scales,
        value_dim=latent_dim,
        block_table=block_table,
        query_start=query_start,
        context_lens=context_lens,
        positions=positions,
        softmax_scale=softmax_scale,
    )
