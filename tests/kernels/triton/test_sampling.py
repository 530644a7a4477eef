"""Sampling in Triton draws the reference's token for the same seed, but for margins of rounding."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.sampling import LogitAdjustments, SamplingParameters
from octavo_kernels.reference import sampling as reference
from octavo_kernels.triton.sampling import adjust, sample
from octavo_kernels.triton.sampling_logprobs import logprobs
from tests.kernels.close import assert_close
from tests.kernels.triton.expert_layers import random

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 7, "position": 3}


def parameters(rows: int, **changes: float) -> SamplingParameters:
    """The same for every row, but for the seed, which counts up."""
    given = {**PLAIN, **changes}
    seeds = int(given["seed"]) + torch.arange(rows)
    return SamplingParameters(
        temperature=torch.full((rows,), float(given["temperature"])),
        top_k=torch.full((rows,), int(given["top_k"])),
        top_p=torch.full((rows,), float(given["top_p"])),
        seed=seeds,
        position=torch.full((rows,), int(given["position"])),
        min_p=torch.full((rows,), float(given["min_p"])) if "min_p" in given else None,
    )


@settings(deadline=None, max_examples=8)
@given(
    vocabulary=st.integers(1, 300),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 3, 50, 400]),
    top_p=st.sampled_from([1.0, 0.9, 0.31, 1e-6]),
    min_p=st.sampled_from([0.0, 0.07, 1.0]),
    ties=st.booleans(),
    seed=st.integers(0, 1 << 40),
)
def test_it_draws_the_reference_s_token(
    vocabulary: int, temperature: float, top_k: int, top_p: float, min_p: float, ties: bool, seed: int
) -> None:
    logits = random(2, vocabulary, seed=seed % 1000) * 3
    logits = logits.round() if ties else logits
    given = parameters(2, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    assert torch.equal(sample(logits, given), reference.sample(logits, given))


def test_rows_of_many_blocks_draw_the_same_as_well() -> None:
    logits = random(2, 5001) * 2
    given = parameters(2, top_k=2600, seed=11)
    assert torch.equal(sample(logits, given), reference.sample(logits, given))


@pytest.mark.slow
def test_a_whole_vocabulary_without_cuts() -> None:
    logits = random(3, 151_936) * 2
    mixed = parameters(3)
    mixed.temperature[1] = 0.0
    assert torch.equal(sample(logits, mixed), reference.sample(logits, mixed))


def test_another_seed_or_position_draws_another_token_and_the_same_the_same() -> None:
    logits = torch.zeros(1, 1000)
    draws = [sample(logits, parameters(1, seed=seed, position=position)) for seed, position in ((1, 1), (1, 2), (2, 1))]
    assert len({int(draw) for draw in draws}) == 3
    assert torch.equal(sample(logits, parameters(1, seed=1, position=1)), draws[0])


def test_equal_logits_are_cut_by_id_as_in_the_reference() -> None:
    for seed in range(3):
        given = parameters(2, top_k=3, top_p=0.5, seed=seed)
        drawn = sample(torch.zeros(2, 9), given)
        assert torch.equal(drawn, reference.sample(torch.zeros(2, 9), given))
        assert int(drawn.max()) < 2


def test_what_is_no_number_is_never_drawn_and_nothing_to_draw_is_token_0() -> None:
    logits = torch.full((5, 6), -float("inf"))
    logits[0, 4], logits[1, 2] = 1.0, float("inf")
    logits[2] = float("nan")
    logits[3, 1], logits[3, 5] = float("nan"), -3.0
    for changes in ({"temperature": 0.0}, {"top_k": 2, "top_p": 0.9}):
        given = parameters(5, **changes)
        assert sample(logits, given).tolist() == [4, 2, 0, 5, 0] == reference.sample(logits, given).tolist()


def adjustments() -> LogitAdjustments:
    return LogitAdjustments(
        rows=torch.tensor([0, 0, 0, 1, 2]),
        tokens=torch.tensor([1, 3, 4, 0, 2]),
        bias=torch.tensor([0.0, 0.5, -float("inf"), 1.0, 0.0]),
        count=torch.tensor([2, 0, 0, 1, 0], dtype=torch.int32),
        in_prompt=torch.tensor([False, True, False, False, False]),
        repetition=torch.tensor([1.3, 1.0, 2.0]),
        presence=torch.tensor([0.2, 0.1, 0.0]),
        frequency=torch.tensor([0.05, 0.3, 0.0]),
    )


def test_adjustments_change_single_logits_and_the_draw() -> None:
    logits = random(3, 5)
    expected = reference.adjust(logits, adjustments())
    assert torch.equal(adjust(logits, adjustments()).isinf(), expected.isinf())
    assert_close(adjust(logits, adjustments()).exp(), expected.exp(), within=1e-6)
    given = dataclasses.replace(parameters(3, temperature=0.0), adjustments=adjustments())
    assert torch.equal(sample(logits, given), reference.sample(logits, given))


def test_adjustments_of_what_does_not_exist_are_left_out() -> None:
    logits = random(3, 5)
    astray = dataclasses.replace(
        adjustments(), rows=torch.tensor([0, 3, -1, 1, 2]), tokens=torch.tensor([5, 0, 0, 9, 2])
    )
    assert torch.equal(adjust(logits, astray), logits)


@settings(deadline=None, max_examples=5)
@given(rows=st.integers(0, 3), vocabulary=st.integers(1, 200), top=st.integers(0, 5), seed=st.integers(0, 99))
def test_logprobs(rows: int, vocabulary: int, top: int, seed: int) -> None:
    logits = (random(rows, vocabulary, seed=seed) * 2).round()
    tokens = torch.arange(rows) % vocabulary
    got, expected = logprobs(logits, tokens, top), reference.logprobs(logits, tokens, top)
    assert torch.equal(got.top_ids, expected.top_ids)
    assert_close(got.top, expected.top, within=1e-5)
    assert_close(got.chosen, expected.chosen, within=1e-5)


def test_logprobs_of_what_is_no_number() -> None:
    logits = random(3, 2100)
    logits[0, 2090], logits[1, 3] = float("nan"), -float("inf")
    tokens = torch.tensor([0, 3, 2])
    got, expected = logprobs(logits, tokens, 2), reference.logprobs(logits, tokens, 2)
    assert torch.equal(got.top_ids, expected.top_ids)
    assert torch.equal(got.top.isnan(), expected.top.isnan())
    assert got.chosen[1] == -float("inf")


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(KernelInputError, match="top_k is"):
        sample(torch.ones(1, 4), dataclasses.replace(parameters(1), top_k=torch.zeros(1, dtype=torch.int32)))
    with pytest.raises(KernelInputError, match=r"temperature has shape \[2\], needed \[1\]"):
        sample(torch.ones(1, 4), parameters(2))
    with pytest.raises(KernelInputError, match="logits is not contiguous"):
        sample(torch.ones(4, 1).expand(4, 3).t(), parameters(3))
    assert sample(torch.ones(0, 4), parameters(0)).shape == (0,)
