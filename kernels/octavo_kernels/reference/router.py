"""Routing tokens to experts: softmax top-k, and the sigmoid router with correction bias and expert groups.

Both rank by falling score and, among equal scores, by rising expert id, so the choice is the same on every device.
NaN ranks below everything: ids stay distinct and in range, and the weights say NaN.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.reference.activation import sigmoid

SUM_FLOOR = 1e-20
"""Added to the sum of the sigmoid router's weights, as the models that use it were trained."""


def softmax_top_k(logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick each token's experts: logits [T, E] float32 to (ids [T, k] int64, weights [T, k] float32).

    The weights are the softmax over all experts; `renormalise` makes the k of them sum to one (Shazeer et al., arXiv
    1701.06538, without noise; Qwen3-MoE and Mixtral). Ranked by logit, which softmax keeps in order.
    """
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    _check_top_k(top_k, logits.shape[1])
    ids = _ranked(_without_nan(logits))[:, :top_k].contiguous()
    weights = logits.softmax(dim=-1).gather(1, ids)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
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
    """Pick each token's experts: logits [T, E] and bias [E] float32 to (ids [T, k] int64, weights [T, k] float32).

    DeepSeek-V3 (arXiv 2412.19437, section 2.1.2; `noaux_tc` in its configuration; Kimi K2, GLM). Experts are ranked by
    sigmoid(logit) + bias. They form `groups` runs of E / groups neighbours; a group scores the sum of its two best (of
    its only one, where it has one), and only the `top_groups` best groups take part. The weights are the sigmoids
    without the bias; `renormalise` divides them by (their sum + 1e-20); at last they are multiplied by `scaling`.
    """
    require_dtype("logits", logits, torch.float32)
    require_dtype("bias", bias, torch.float32)
    require_shape("logits", logits, None, None)
    tokens, experts = logits.shape
    require_shape("bias", bias, experts)
    if groups < 1 or experts % groups:
        raise KernelInputError(f"groups is {groups}, needed a divisor of {experts} experts")
    if not 1 <= top_groups <= groups:
        raise KernelInputError(f"top_groups is {top_groups}, needed 1 to {groups} groups")
    size = experts // groups
    _check_top_k(top_k, top_groups * size)
    scores = sigmoid(logits)
    choice = _without_nan(scores + bias)
    group_scores = choice.view(tokens, groups, size).topk(min(2, size), dim=-1).values.sum(dim=-1)
    taken = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, _ranked(group_scores)[:, :top_groups], True)
    ranked = _ranked(choice)
    # A second stable sort, not -inf for the other groups: -inf may be a score of a taken one.
    others_last = (~taken).repeat_interleave(size, dim=1).gather(1, ranked).byte().sort(dim=-1, stable=True).indices
    ids = ranked.gather(1, others_last[:, :top_k])
    weights = scores.gather(1, ids)
    if renormalise:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + SUM_FLOOR)
    return ids, weights * scaling


def _check_top_k(top_k: int, experts: int) -> None:
    if not 1 <= top_k <= experts:
        raise KernelInputError(f"top_k is {top_k}, needed 1 to {experts} experts")


def _without_nan(scores: torch.Tensor) -> torch.Tensor:
    return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _ranked(scores: torch.Tensor) -> torch.Tensor:
    """The columns of each row by falling score, equal ones by rising index."""
    return scores.sort(dim=-1, descending=True, stable=True).indices
