"""Routers in C.

They rank as `reference.router` does. The sigmoid router ranks by values that are rounded, so two experts whose scores
differ by less than two units in the last place may change places.
"""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape


def softmax_top_k(logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference.router.softmax_top_k`; logits contiguous."""
    tokens, experts = _check(logits)
    _check_top_k(top_k, experts)
    ids, weights = torch.empty((tokens, top_k), dtype=torch.int64), torch.empty((tokens, top_k))
    if tokens:
        scratch = torch.empty((torch.get_num_threads(), experts))
        library.load().call("softmax_top_k", logits, ids, weights, scratch, tokens, experts, top_k, int(renormalise))
    return ids, weights


def sigmoid_top_k(
    logits: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    *,
    groups: int,
    top_groups: int,
    renormalise: bool,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference.router.sigmoid_top_k`; logits and bias contiguous."""
    tokens, experts = _check(logits)
    require_dtype("bias", bias, torch.float32)
    require_shape("bias", bias, experts)
    require_contiguous(bias=bias)
    if groups < 1 or experts % groups:
        raise KernelInputError(f"groups is {groups}, needed a divisor of {experts} experts")
    if not 1 <= top_groups <= groups:
        raise KernelInputError(f"top_groups is {top_groups}, needed 1 to {groups} groups")
    _check_top_k(top_k, top_groups * (experts // groups))
    ids, weights = torch.empty((tokens, top_k), dtype=torch.int64), torch.empty((tokens, top_k))
    if tokens:
        scratch = torch.empty((torch.get_num_threads(), 4, experts))
        library.load().call(
            "sigmoid_top_k",
            *(logits, bias, ids, weights, scratch, float(scaling)),
            *(tokens, experts, top_k, groups, top_groups, int(renormalise)),
        )
    return ids, weights


def _check(logits: torch.Tensor) -> tuple[int, int]:
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    require_contiguous(logits=logits)
    return logits.shape[0], logits.shape[1]


def _check_top_k(top_k: int, experts: int) -> None:
    if not 1 <= top_k <= experts:
        raise KernelInputError(f"top_k is {top_k}, needed 1 to {experts} experts")
