"""Routers in C choose the experts of the reference, in its order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.router import sigmoid_top_k, softmax_top_k
from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference import router as reference
from tests.kernels.close import assert_close

pytestmark = pytest.mark.usefixtures("each_variant")

ODD = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1.0, 300.0, -300.0])


def assert_same(got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1].isnan(), expected[1].isnan())
    assert_close(got[1].nan_to_num(), expected[1].nan_to_num(), within=2e-6)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(0, 6),
    experts=st.sampled_from([1, 3, 16, 60, 128, 257]),
    top=st.integers(1, 12),
    renormalise=st.booleans(),
    coarse=st.booleans(),
    odd=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_softmax_top_k_equals_the_reference(
    tokens: int, experts: int, top: int, renormalise: bool, coarse: bool, odd: int, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(tokens, experts) * 3
    if coarse:
        logits = logits.round()
    if tokens:
        logits.view(-1)[torch.randint(0, logits.numel(), (odd,))] = ODD[torch.randint(0, len(ODD), (odd,))]
    top = min(top, experts)
    got = softmax_top_k(logits, top, renormalise=renormalise)
    assert_same(got, reference.softmax_top_k(logits, top, renormalise=renormalise))


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(0, 6),
    groups=st.sampled_from([1, 2, 8]),
    size=st.sampled_from([1, 2, 5, 32]),
    top=st.integers(1, 12),
    top_groups=st.integers(1, 8),
    renormalise=st.booleans(),
    odd=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_sigmoid_top_k_equals_the_reference(
    tokens: int, groups: int, size: int, top: int, top_groups: int, renormalise: bool, odd: int, seed: int
) -> None:
    torch.manual_seed(seed)
    # Multiples of 1/4 with a bias of multiples of 1/8: scores are equal or far enough apart for rounding not to matter.
    logits, bias = (torch.randn(tokens, groups * size) * 8).round() / 4, (torch.randn(groups * size) * 4).round() / 8
    bias *= 0 if seed % 2 else 1
    if tokens:
        logits.view(-1)[torch.randint(0, logits.numel(), (odd,))] = ODD[torch.randint(0, 7, (odd,))]
    top_groups = min(top_groups, groups)
    top = min(top, top_groups * size)
    got = sigmoid_top_k(logits, bias, top, groups=groups, top_groups=top_groups, renormalise=renormalise, scaling=2.5)
    expected = reference.sigmoid_top_k(
        logits, bias, top, groups=groups, top_groups=top_groups, renormalise=renormalise, scaling=2.5
    )
    assert_same(got, expected)


@pytest.mark.usefixtures("two_threads")
def test_a_token_is_routed_the_same_alone_and_on_two_threads() -> None:
    logits, bias = torch.randn(300, 128), torch.randn(128)
    softmax = softmax_top_k(logits, 8, renormalise=True)
    sigmoid = sigmoid_top_k(logits, bias, 8, groups=8, top_groups=4, renormalise=True, scaling=1.0)
    torch.set_num_threads(1)
    for token in (0, 150, 299):
        row = logits[token : token + 1]
        for alone, together in zip(softmax_top_k(row, 8, renormalise=True), softmax, strict=True):
            assert torch.equal(alone[0], together[token])
        again = sigmoid_top_k(row, bias, 8, groups=8, top_groups=4, renormalise=True, scaling=1.0)
        for alone, together in zip(again, sigmoid, strict=True):
            assert torch.equal(alone[0], together[token])


def test_inputs_that_cannot_be_taken_are_named() -> None:
    logits, bias = torch.zeros(2, 8), torch.zeros(8)
    with pytest.raises(KernelInputError, match="top_k is 9, needed 1 to 8 experts"):
        softmax_top_k(logits, 9, renormalise=False)
    with pytest.raises(KernelInputError, match="logits is not contiguous"):
        softmax_top_k(torch.zeros(8, 2).t(), 1, renormalise=False)
    with pytest.raises(KernelInputError, match="groups is 3, needed a divisor of 8 experts"):
        sigmoid_top_k(logits, bias, 1, groups=3, top_groups=1, renormalise=False, scaling=1.0)
    with pytest.raises(KernelInputError, match="top_groups is 3, needed 1 to 2 groups"):
        sigmoid_top_k(logits, bias, 1, groups=2, top_groups=3, renormalise=False, scaling=1.0)
    with pytest.raises(KernelInputError, match="bias has shape"):
        sigmoid_top_k(logits, bias[:7], 1, groups=1, top_groups=1, renormalise=False, scaling=1.0)
