"""Sampling in C draws the tokens of the reference for the same seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.sampling import logprobs, sample
from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.sampling import LogitAdjustments, SamplingParameters
from octavo_kernels.reference import sampling as reference
from tests.kernels.close import assert_close

pytestmark = pytest.mark.usefixtures("each_variant")

ODD = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3.0, 3.0, 1e30, -1e30])


def parameters(rows: int, seed: int, *, min_p: bool = False) -> SamplingParameters:
    """Other settings for each row, among them none, greedy and the smallest."""
    generator = torch.Generator().manual_seed(seed)

    def pick(choices: list[float]) -> torch.Tensor:
        return torch.tensor(choices)[torch.randint(0, len(choices), (rows,), generator=generator)]

    return SamplingParameters(
        temperature=pick([0.0, 1e-4, 0.3, 1.0, 2.5]),
        top_k=pick([0, 1, 2, 7, 40, 10**6]).long(),
        top_p=pick([1.0, 1.0, 0.9, 0.5, 0.123, 1e-6]),
        seed=torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        position=torch.randint(0, 2**33, (rows,), generator=generator),
        min_p=pick([0.0, 0.05, 0.7, 1.0]) if min_p else None,
    )


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 6),
    vocabulary=st.sampled_from([1, 2, 17, 100, 1000]),
    spread=st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    coarse=st.booleans(),
    odd=st.integers(0, 4),
    min_p=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_it_draws_the_tokens_of_the_reference(
    rows: int, vocabulary: int, spread: float, coarse: bool, odd: int, min_p: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(rows, vocabulary) * spread
    if coarse:
        logits = logits.round()
    if rows:
        logits.view(-1)[torch.randint(0, logits.numel(), (odd,))] = ODD[torch.randint(0, len(ODD), (odd,))]
    settings_of_rows = parameters(rows, seed, min_p=min_p)
    assert torch.equal(sample(logits, settings_of_rows), reference.sample(logits, settings_of_rows))


@pytest.mark.usefixtures("two_threads")
def test_a_vocabulary_of_a_real_model() -> None:
    torch.manual_seed(3)
    logits = torch.randn(12, 151_936) * 2.5
    settings_of_rows = parameters(12, 3, min_p=True)
    by_two = sample(logits, settings_of_rows)
    torch.set_num_threads(1)
    assert torch.equal(sample(logits, settings_of_rows), by_two)
    assert torch.equal(by_two, reference.sample(logits, settings_of_rows))


@pytest.mark.parametrize("value", [float("nan"), -float("inf"), float("inf"), 0.0])
def test_rows_of_one_value(value: float) -> None:
    logits = torch.full((8, 300), value)
    settings_of_rows = parameters(8, 5, min_p=True)
    assert torch.equal(sample(logits, settings_of_rows), reference.sample(logits, settings_of_rows))


def test_adjustments_come_first() -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 50)
    adjustments = LogitAdjustments(
        rows=torch.tensor([0, 0, 2]),
        tokens=torch.tensor([1, 2, 49]),
        bias=torch.tensor([5.0, float("-inf"), 9.0]),
        count=torch.tensor([2, 0, 1], dtype=torch.int32),
        in_prompt=torch.tensor([False, True, False]),
        repetition=torch.tensor([1.2, 1.0, 1.5]),
        presence=torch.tensor([0.1, 0.0, 0.3]),
        frequency=torch.tensor([0.2, 0.0, 0.0]),
    )
    for seed in range(10):
        settings_of_rows = replace(parameters(3, seed), adjustments=adjustments)
        assert torch.equal(sample(logits, settings_of_rows), reference.sample(logits, settings_of_rows))


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(0, 4),
    vocabulary=st.sampled_from([1, 17, 300]),
    top=st.sampled_from([0, 1, 5, 20, 1000]),
    coarse=st.booleans(),
    odd=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_logprobs_equal_the_reference(rows: int, vocabulary: int, top: int, coarse: bool, odd: int, seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(rows, vocabulary) * 4
    if coarse:
        logits = logits.round()
    if rows:
        logits.view(-1)[torch.randint(0, logits.numel(), (odd,))] = ODD[torch.randint(0, len(ODD), (odd,))]
    tokens = torch.randint(0, vocabulary, (rows,))
    got, expected = logprobs(logits, tokens, top), reference.logprobs(logits, tokens, top)
    assert torch.equal(got.top_ids, expected.top_ids)
    for one, other in ((got.chosen, expected.chosen), (got.top, expected.top)):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.isinf(), other.isinf())
        numbers = other.isfinite() & (other > -1e6)
        assert_close(one[numbers], other[numbers], within=1e-5)


def test_inputs_that_cannot_be_taken_are_named() -> None:
    logits, good = torch.zeros(2, 9), parameters(2, 0)
    with pytest.raises(KernelInputError, match="logits is not contiguous"):
        sample(torch.zeros(9, 2).t(), good)
    with pytest.raises(KernelInputError, match=r"top_k is torch\.int32"):
        sample(logits, replace(good, top_k=good.top_k.int()))
    with pytest.raises(KernelInputError, match=r"seed has shape \[1\]"):
        sample(logits, replace(good, seed=good.seed[:1]))
    with pytest.raises(KernelInputError, match="vocabulary of 0"):
        sample(torch.zeros(2, 0), good)
    with pytest.raises(KernelInputError, match="tokens has 9, needed 0 to 8"):
        logprobs(logits, torch.tensor([0, 9]), 3)
