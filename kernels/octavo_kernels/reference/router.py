"""Softmax top-k routing (Shazeer et al., arXiv 1701.06538, without noise; Qwen3-MoE and Mixtral)."""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_dtype


def softmax_top_k(logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick each token's experts: logits [T, E] float32 to (ids [T, k] int64, weights [T, k] float32).

    Experts are ordered by falling probability. `renormalise` makes the k weights sum to one.
    """
    require_dtype("logits", logits, torch.float32)
    if not 1 <= top_k <= logits.shape[-1]:
        raise KernelInputError(f"top_k is {top_k}, needed 1 to {logits.shape[-1]} experts")
    weights, ids = torch.topk(logits.softmax(dim=-1), top_k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return ids, weights
