"""RMSNorm, rotary embedding and the routers in Triton equal the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference import rms_norm as norm_reference
from octavo_kernels.reference import rotary as rotary_reference
from octavo_kernels.reference import router as router_reference
from octavo_kernels.triton import rotary, router
from octavo_kernels.triton.rms_norm import rms_norm
from tests.kernels.close import assert_close
from tests.kernels.triton.expert_layers import random

FLOAT32 = 1e-5


@settings(deadline=None, max_examples=6)
@given(rows=st.integers(0, 4), heads=st.integers(1, 3), width=st.integers(1, 300))
def test_rms_norm(rows: int, heads: int, width: int) -> None:
    x, weight = random(rows, heads, width), random(width, seed=1)
    assert_close(rms_norm(x, weight, 1e-6), norm_reference.rms_norm(x, weight, 1e-6), within=FLOAT32)


def test_rms_norm_of_bfloat16_and_of_what_is_no_number() -> None:
    x, weight = random(3, 40), random(40, seed=1).bfloat16()
    assert torch.equal(rms_norm(x.bfloat16(), weight, 1e-6), rms_norm(x.bfloat16().float(), weight, 1e-6).bfloat16())
    x[1, 3], x[2, 0] = float("nan"), float("inf")
    expected = norm_reference.rms_norm(x, weight, 1e-6)
    assert torch.equal(rms_norm(x, weight, 1e-6).isnan(), expected.isnan())


def test_rms_norm_refuses_what_it_cannot_take() -> None:
    with pytest.raises(KernelInputError, match=r"weight has shape \[3\], needed \[4\]"):
        rms_norm(torch.ones(1, 4), torch.ones(3), 1e-6)
    with pytest.raises(KernelInputError, match="at most 32768"):
        rms_norm(torch.ones(1, 40_000), torch.ones(40_000), 1e-6)
    with pytest.raises(KernelInputError, match="x is not contiguous"):
        rms_norm(torch.ones(4, 4).t(), torch.ones(4), 1e-6)


@settings(deadline=None, max_examples=8)
@given(
    tokens=st.integers(0, 3),
    heads=st.integers(1, 9),
    half=st.integers(1, 20),
    rest=st.integers(0, 9),
    interleaved=st.booleans(),
)
def test_rotary(tokens: int, heads: int, half: int, rest: int, interleaved: bool) -> None:
    x = random(tokens, heads, 2 * half + rest)
    positions = torch.arange(tokens) * 70_001
    frequencies = rotary_reference.inverse_frequencies(2 * half, 10_000.0, positions.device)
    cosine, sine = rotary.angles(positions, frequencies, 1.3)
    for got, expected in zip((cosine, sine), rotary_reference.angles(positions, frequencies, 1.3), strict=True):
        assert_close(got, expected, within=FLOAT32)
    got = rotary.rotate(x, cosine, sine, interleaved=interleaved)
    expected = rotary_reference.rotate(x, cosine, sine, interleaved=interleaved)
    assert_close(got, expected, within=FLOAT32)
    assert torch.equal(got[..., 2 * half :], x[..., 2 * half :])


def test_rotary_refuses_more_angles_than_a_head_has() -> None:
    with pytest.raises(KernelInputError, match="cosine is for 6 elements of a head, x has 4"):
        rotary.rotate(torch.ones(1, 1, 4), torch.ones(1, 3), torch.ones(1, 3))


def logits_with_ties(tokens: int, experts: int, seed: int) -> torch.Tensor:
    """Few distinct values, so that most ranks are decided by the id."""
    return (random(tokens, experts, seed=seed) * 2).round()


@settings(deadline=None, max_examples=8)
@given(
    tokens=st.integers(0, 3),
    experts=st.integers(1, 70),
    top_k=st.integers(1, 9),
    renormalise=st.booleans(),
    seed=st.integers(0, 99),
)
def test_softmax_router(tokens: int, experts: int, top_k: int, renormalise: bool, seed: int) -> None:
    logits, top_k = logits_with_ties(tokens, experts, seed), min(top_k, experts)
    ids, weights = router.softmax_top_k(logits, top_k, renormalise=renormalise)
    expected_ids, expected = router_reference.softmax_top_k(logits, top_k, renormalise=renormalise)
    assert torch.equal(ids, expected_ids)
    assert_close(weights, expected, within=FLOAT32)


@settings(deadline=None, max_examples=8)
@given(
    tokens=st.integers(0, 3),
    groups=st.integers(1, 4),
    size=st.integers(1, 9),
    top_groups=st.integers(1, 4),
    top_k=st.integers(1, 5),
    renormalise=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sigmoid_router(
    tokens: int, groups: int, size: int, top_groups: int, top_k: int, renormalise: bool, seed: int
) -> None:
    top_groups = min(top_groups, groups)
    top_k = min(top_k, top_groups * size)
    logits, bias = logits_with_ties(tokens, groups * size, seed), random(groups * size, seed=seed).round() / 4
    ids, weights = router.sigmoid_top_k(
        logits, bias, top_k, groups=groups, top_groups=top_groups, renormalise=renormalise, scaling=2.5
    )
    expected_ids, expected = router_reference.sigmoid_top_k(
        logits, bias, top_k, groups=groups, top_groups=top_groups, renormalise=renormalise, scaling=2.5
    )
    assert torch.equal(ids, expected_ids)
    assert_close(weights, expected, within=FLOAT32)


def test_routers_keep_ids_distinct_and_weights_honest_where_logits_are_no_numbers() -> None:
    logits = random(4, 6)
    logits[0, 2], logits[1], logits[2, 4], logits[3, 1:] = float("nan"), float("nan"), float("inf"), -float("inf")
    ids, weights = router.softmax_top_k(logits, 3, renormalise=True)
    expected_ids, expected = router_reference.softmax_top_k(logits, 3, renormalise=True)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(weights.isnan(), expected.isnan())
    bias = torch.zeros(6)
    ids, weights = router.sigmoid_top_k(logits, bias, 3, groups=2, top_groups=1, renormalise=False, scaling=1.0)
    expected_ids, expected = router_reference.sigmoid_top_k(
        logits, bias, 3, groups=2, top_groups=1, renormalise=False, scaling=1.0
    )
    assert torch.equal(ids, expected_ids)
    assert torch.equal(weights.isnan(), expected.isnan())


def test_routers_refuse_what_they_cannot_take() -> None:
    with pytest.raises(KernelInputError, match="top_k is 3, needed 1 to 2 experts"):
        router.softmax_top_k(torch.ones(1, 2), 3, renormalise=True)
    with pytest.raises(KernelInputError, match="logits is torch.bfloat16"):  # noqa: RUF043
        router.softmax_top_k(torch.ones(1, 2).bfloat16(), 1, renormalise=True)
    with pytest.raises(KernelInputError, match="groups is 2, needed a divisor of 3 experts"):
        router.sigmoid_top_k(torch.ones(1, 3), torch.ones(3), 1, groups=2, top_groups=1, renormalise=True, scaling=1.0)
