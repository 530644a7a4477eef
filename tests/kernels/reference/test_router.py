"""Routers: the experts by score, ties by id, groups cut off, and the weights the models were trained with."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.router import sigmoid_top_k, softmax_top_k
from tests.kernels.close import assert_close


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 6), st.integers(1, 128), st.data())
def test_routing_takes_the_most_likely_experts(tokens: int, experts: int, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, experts))
    logits = random(tokens, experts)
    ids, weights = softmax_top_k(logits, top_k, renormalise=False)
    for token in range(tokens):
        shares = [math.exp(value) for value in logits[token].tolist()]
        best = sorted(range(experts), key=lambda e: -shares[e])[:top_k]
        assert ids[token].tolist() == best
        assert weights[token].tolist() == pytest.approx([shares[e] / sum(shares) for e in best], abs=1e-6)


def test_renormalised_weights_sum_to_one_and_keep_their_ratio() -> None:
    logits = random(20, 16)
    _, plain = softmax_top_k(logits, 4, renormalise=False)
    _, weights = softmax_top_k(logits, 4, renormalise=True)
    assert_close(weights.sum(-1), torch.ones(20), within=1e-6)
    assert_close(weights / weights[:, :1], plain / plain[:, :1], within=1e-6)


@pytest.mark.parametrize("experts", [128, 61])
def test_routing_of_a_token_has_the_same_bits_in_every_batch(experts: int) -> None:
    logits = random(40, experts)
    groups = 8 if experts == 128 else 1

    def route(rows: torch.Tensor) -> list[torch.Tensor]:
        sigmoid = sigmoid_top_k(
            rows, random(experts), 8, groups=groups, top_groups=(groups + 1) // 2, renormalise=True, scaling=2.5
        )
        return [*softmax_top_k(rows, 8, renormalise=True), *sigmoid]

    together = route(logits)
    for token in range(40):
        for alone, row in zip(route(logits[token : token + 1]), together, strict=True):
            assert torch.equal(alone[0], row[token])


def test_what_a_router_answers_is_contiguous_as_expert_kernels_need_it() -> None:
    sigmoid = sigmoid_top_k(random(3, 8), torch.zeros(8), 2, groups=2, top_groups=1, renormalise=True, scaling=1.0)
    assert all(answer.is_contiguous() for answer in (*softmax_top_k(random(3, 8), 2, renormalise=True), *sigmoid))


def test_equal_scores_are_ranked_by_id() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, -1.0]])
    assert softmax_top_k(logits, 6, renormalise=False)[0].tolist() == [[1, 3, 5, 6, 0, 2]]
    ids, _ = sigmoid_top_k(logits, torch.zeros(8), 6, groups=1, top_groups=1, renormalise=False, scaling=1.0)
    assert ids.tolist() == [[1, 3, 5, 6, 0, 2]]
    even = torch.zeros((1, 8))
    ids, _ = sigmoid_top_k(even, torch.zeros(8), 3, groups=4, top_groups=2, renormalise=False, scaling=1.0)
    assert ids.tolist() == [[0, 1, 2]]


def test_logits_that_are_no_numbers_rank_last_and_stay_in_the_weights() -> None:
    logits = torch.tensor([[torch.nan, -torch.inf, 0.0, 1.0], [torch.nan] * 4])
    ids, weights = softmax_top_k(logits, 3, renormalise=True)
    assert ids.tolist() == [[3, 2, 0], [0, 1, 2]]
    assert weights.isnan().all()
    ids, weights = sigmoid_top_k(logits, torch.zeros(4), 3, groups=1, top_groups=1, renormalise=False, scaling=1.0)
    assert ids.tolist() == [[3, 2, 1], [0, 1, 2]]
    assert weights.isnan().tolist() == [[False, False, False], [True] * 3]


def test_an_expert_of_a_group_that_was_cut_off_never_comes_before_one_of_the_others() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 5.0, torch.nan, -9.0, -9.0]])
    bias = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf, 0.0, 0.0])
    ids, _ = sigmoid_top_k(logits, bias, 2, groups=3, top_groups=1, renormalise=False, scaling=1.0)
    assert ids.tolist() == [[4, 5]]
    ids, _ = sigmoid_top_k(logits[:, :4], bias[:4], 2, groups=2, top_groups=1, renormalise=False, scaling=1.0)
    assert ids.tolist() == [[0, 1]]


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(0, 5),
    groups=st.integers(1, 5),
    size=st.integers(1, 9),
    renormalise=st.booleans(),
    scaling=st.sampled_from([1.0, 2.5]),
    data=st.data(),
)
def test_the_sigmoid_router_equals_its_definition(
    tokens: int, groups: int, size: int, renormalise: bool, scaling: float, data: st.DataObject
) -> None:
    top_groups = data.draw(st.integers(1, groups))
    top_k = data.draw(st.integers(1, top_groups * size))
    logits, bias = random(tokens, groups * size) * 3, random(groups * size, seed=1)
    ids, weights = sigmoid_top_k(
        logits, bias, top_k, groups=groups, top_groups=top_groups, renormalise=renormalise, scaling=scaling
    )
    for token in range(tokens):
        scores = [1 / (1 + math.exp(-value)) for value in logits[token].tolist()]
        biased = [score + offset for score, offset in zip(scores, bias.tolist(), strict=True)]
        best_two = [sum(sorted(biased[g * size : g * size + size])[-2:]) for g in range(groups)]
        taken = sorted(range(groups), key=lambda g: -best_two[g])[:top_groups]
        chosen = sorted((e for e in range(groups * size) if e // size in taken), key=lambda e: -biased[e])[:top_k]
        assert ids[token].tolist() == chosen
        total = sum(scores[e] for e in chosen) if renormalise else 1.0
        assert weights[token].tolist() == pytest.approx([scores[e] / total * scaling for e in chosen], rel=1e-5)


def test_groups_of_one_expert_score_that_expert() -> None:
    ids, _ = sigmoid_top_k(random(3, 6), torch.zeros(6), 2, groups=6, top_groups=2, renormalise=True, scaling=1.0)
    assert ids.tolist() == softmax_top_k(random(3, 6), 2, renormalise=True)[0].tolist()


@pytest.mark.parametrize("top_k", [0, 9])
def test_an_impossible_top_k_is_refused(top_k: int) -> None:
    with pytest.raises(KernelInputError, match=f"top_k is {top_k}, needed 1 to 8"):
        softmax_top_k(random(2, 8), top_k, renormalise=True)
    with pytest.raises(KernelInputError, match=f"top_k is {top_k}, needed 1 to 8"):
        sigmoid_top_k(random(2, 16), torch.zeros(16), top_k, groups=2, top_groups=1, renormalise=True, scaling=1.0)


def test_impossible_groups_are_refused() -> None:
    with pytest.raises(KernelInputError, match="groups is 3, needed a divisor of 8 experts"):
        sigmoid_top_k(random(2, 8), torch.zeros(8), 1, groups=3, top_groups=1, renormalise=True, scaling=1.0)
    with pytest.raises(KernelInputError, match="top_groups is 3, needed 1 to 2 groups"):
        sigmoid_top_k(random(2, 8), torch.zeros(8), 1, groups=2, top_groups=3, renormalise=True, scaling=1.0)
    with pytest.raises(KernelInputError, match=r"bias has shape \[7\], needed \[8\]"):
        sigmoid_top_k(random(2, 8), torch.zeros(7), 1, groups=2, top_groups=1, renormalise=True, scaling=1.0)
