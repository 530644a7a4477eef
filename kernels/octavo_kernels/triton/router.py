# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Routers in Triton: one program per token picks its experts one after another; equal scores by rising id.

NaN ranks as minus infinity and shows in the weights. What has been picked is remembered in a mask, not by a score of
minus infinity, which may be a real one: ids stay distinct.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.triton.aot_case import ARCHITECTURES, DISTINCT, AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors

MOST_EXPERTS = 2048


@triton.jit
def without_nan(scores):
    return tl.where(scores == scores, scores, -float("inf"))


@triton.jit
def softmax_router(logits, ids, weights, experts, RENORMALISE: tl.constexpr, TOP_K: tl.constexpr,
                   PLACES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    place = tl.arange(0, PLACES)
    free = expert < experts
    logit = tl.load(logits + token * experts + expert, mask=free, other=-float("inf"))
    score = without_nan(logit)
    largest = tl.max(score, 0)
    share = tl.where(free, tl.exp(logit - largest), 0.0)
    total = tl.sum(share, 0)
    picked = tl.zeros([PLACES], tl.int32)
    weight = tl.zeros([PLACES], tl.float32)
    for rank in tl.static_range(TOP_K):
        best = tl.max(tl.where(free, score, -float("inf")), 0)
        found = tl.min(tl.where(free & (score == best), expert, BLOCK), 0)
        picked = tl.where(place == rank, found, picked)
        weight = tl.where(place == rank, tl.sum(tl.where(expert == found, share, 0.0), 0) / total, weight)
        free = free & (expert != found)
    if RENORMALISE:
        weight = weight / tl.sum(weight, 0)
    tl.store(ids + token * TOP_K + place, picked.to(tl.int64), mask=place < TOP_K)
    tl.store(weights + token * TOP_K + place, weight, mask=place < TOP_K)


@triton.jit
def largest_of(values):
    return tl.max(tl.max(values, 1), 0)


@triton.jit
def sigmoid_router(logits, bias, ids, weights, groups, size, scaling, TOP_GROUPS: tl.constexpr,
                   RENORMALISE: tl.constexpr, TOP_K: tl.constexpr, PLACES: tl.constexpr, GROUPS: tl.constexpr,
                   SIZE: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    member = tl.arange(0, SIZE)
    place = tl.arange(0, PLACES)
    expert = group[:, None] * size + member[None, :]
    exists = (group < groups)[:, None] & (member < size)[None, :]
    logit = tl.load(logits + token * groups * size + expert, mask=exists, other=0.0)
    score = 1.0 / (1.0 + tl.exp(-logit))
    choice = without_nan(score + tl.load(bias + expert, mask=exists, other=0.0))
    choice = tl.where(exists, choice, -float("inf"))
    # The two best of each group, the second where there is one.
    best = tl.max(choice, 1)
    at = tl.min(tl.where(exists & (choice == best[:, None]), member[None, :], SIZE), 1)
    second = tl.max(tl.where(member[None, :] == at[:, None], -float("inf"), choice), 1)
    group_score = best + tl.where(size > 1, second, 0.0)
    left = group < groups
    taken = group < 0
    for _ in tl.static_range(TOP_GROUPS):
        top = tl.max(tl.where(left, group_score, -float("inf")), 0)
        found = tl.min(tl.where(left & (group_score == top), group, GROUPS), 0)
        taken = taken | (group == found)
        left = left & (group != found)
    free = exists & taken[:, None]
    picked = tl.zeros([PLACES], tl.int32)
    weight = tl.zeros([PLACES], tl.float32)
    for rank in tl.static_range(TOP_K):
        top = largest_of(tl.where(free, choice, -float("inf")))
        found = -largest_of(tl.where(free & (choice == top), -expert, -GROUPS * SIZE))
        picked = tl.where(place == rank, found, picked)
        mine = tl.sum(tl.sum(tl.where(exists & (expert == found), score, 0.0), 1), 0)
        weight = tl.where(place == rank, mine, weight)
        free = free & (expert != found)
    if RENORMALISE:
        weight = weight / (tl.sum(weight, 0) + 1e-20)
    tl.store(ids + token * TOP_K + place, picked.to(tl.int64), mask=place < TOP_K)
    tl.store(weights + token * TOP_K + place, weight * scaling, mask=place < TOP_K)


@on_device_of_tensors
def softmax_top_k(logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick each token's experts: logits [T, E] float32 to (ids [T, k] int64, weights [T, k] float32)."""
    tokens, experts = _check(logits, top_k)
    ids, weights = _empty(logits, top_k)
    if tokens:
        softmax_router[(tokens,)](
            logits, ids, weights, experts, RENORMALISE=renormalise, TOP_K=top_k,
            PLACES=triton.next_power_of_2(top_k), BLOCK=triton.next_power_of_2(experts), num_warps=1,
        )  # fmt: skip
    return ids, weights


@on_device_of_tensors
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
    """Pick each token's experts by sigmoid(logit) + bias among the best groups; see `reference/router.py`."""
    tokens, experts = _check(logits, top_k)
    require_dtype("bias", bias, torch.float32)
    require_shape("bias", bias, experts)
    require_contiguous(bias=bias)
    if groups < 1 or experts % groups:
        raise KernelInputError(f"groups is {groups}, needed a divisor of {experts} experts")
    if not 1 <= top_groups <= groups:
        raise KernelInputError(f"top_groups is {top_groups}, needed 1 to {groups} groups")
    size = experts // groups
    if top_k > top_groups * size:
        raise KernelInputError(f"top_k is {top_k}, needed 1 to {top_groups * size} experts")
    ids, weights = _empty(logits, top_k)
    if tokens:
        sigmoid_router[(tokens,)](
            logits, bias, ids, weights, groups, size, scaling, TOP_GROUPS=top_groups, RENORMALISE=renormalise,
            TOP_K=top_k, PLACES=triton.next_power_of_2(top_k), GROUPS=triton.next_power_of_2(groups),
            SIZE=triton.next_power_of_2(size), num_warps=1,
        )  # fmt: skip
    return ids, weights


def _check(logits: torch.Tensor, top_k: int) -> tuple[int, int]:
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    require_contiguous(logits=logits)
    tokens, experts = logits.shape
    if experts > MOST_EXPERTS:
        raise KernelInputError(f"logits names {experts} experts, needed at most {MOST_EXPERTS}")
    if not 1 <= top_k <= experts:
        raise KernelInputError(f"top_k is {top_k}, needed 1 to {experts} experts")
    return tokens, experts


def _empty(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (logits.shape[0], top_k)
    return torch.empty(shape, dtype=torch.int64, device=logits.device), logits.new_empty(shape)


AOT_CASES: tuple[AotCase, ...] = (
    AotCase(
        name="router/softmax/e128/k8",
        kernel=softmax_router,
        signature={"logits": "*fp32", "ids": "*i64", "weights": "*fp32", "experts": "i32"},
        constants={"RENORMALISE": True, "TOP_K": 8, "PLACES": 8, "BLOCK": 128},
        num_warps=1,
        max_registers=128,
    ),
    *(
        AotCase(
            name=f"router/sigmoid/e{groups * size}/groups{groups}",
            kernel=sigmoid_router,
            signature={
                "logits": "*fp32",
                "bias": "*fp32",
                "ids": "*i64",
                "weights": "*fp32",
                "groups": "i32",
                "size": "i32",
                "scaling": "fp32",
            },
            constants={
                "TOP_GROUPS": top_groups,
                "RENORMALISE": True,
                "TOP_K": 8,
                "PLACES": 8,
                "GROUPS": groups,
                "SIZE": triton.next_power_of_2(size),
            },
            num_warps=1,
            max_registers=200,
            unaligned=frozenset({"groups"}),
            architectures=where,
        )
        for groups, top_groups, size, where in ((1, 1, 384, DISTINCT), (8, 4, 32, ARCHITECTURES))
    ),
)
