"""Multi-head latent attention in absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1) over a paged cache.

A cached row is the latent of L elements, then the rotated key of R. All heads share it: keys are whole rows, values
their first L elements. The query already holds the key up-projection, and the value up-projection follows outside. So
this is attention with one KV head, in the tiles of `attention_tiles.py`.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_shape
from octavo_kernels.reference.attention_tiles import attend_step, gather
from octavo_kernels.step_inputs import check_rows_and_scale, check_step


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
    """Attend from new tokens to their request's cached rows; the new tokens' own rows are in the cache already.

    query [T, heads, L + R] float32; pages [num_pages, page_size, L + R] bfloat16 or float8_e4m3fn; scale float32 [] or,
    with FP8 pages, [num_pages, page_size]; latent_dim is L; the rest as in `paged_attention`. Result [T, heads, L]
    float32. Raises KernelInputError for shapes, dtypes and a context that the table cannot hold.
    """
    check_rows_and_scale(pages, scale)
    num_pages, page_size, row_dim = pages.shape
    check_step(query, block_table, context_lens, page_size)
    require_shape("pages", pages, None, None, query.shape[2])
    if not 1 <= latent_dim <= row_dim:
        raise KernelInputError(f"latent_dim is {latent_dim}, needed 1 to {row_dim}, the elements of a row")

    def read_rows(slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = gather(pages.unsqueeze(2), scale.unsqueeze(-1), slots)
        return keys, keys[..., :latent_dim]

    return attend_step(
        query * softmax_scale,
        read_rows,
        kv_heads=1,
        value_dim=latent_dim,
        num_pages=num_pages,
        page_size=page_size,
        block_table=block_table,
        query_start=query_start,
        context_lens=context_lens,
        positions=positions,
    )
