"""Sampling: the right distribution, the right cuts, and draws that depend on nothing but the request."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.sampling import GREEDY_BELOW, SamplingParameters
from octavo_kernels.reference.sampling import logprobs, sample

VOCABULARY = 50


def parameters(
    rows: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 1, position: int = 0
) -> SamplingParameters:
    """The same settings for each row, positions counting up."""
    return SamplingParameters(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p),
        seed=torch.full((rows,), seed),
        position=torch.arange(position, position + rows),
    )


def one_distribution(rows: int) -> torch.Tensor:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0)) * 1.5
    return logits.expand(rows, -1).contiguous()


def test_temperature_zero_takes_the_most_likely_token() -> None:
    logits = torch.randn(20, VOCABULARY, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sample(logits, parameters(20, temperature=0.0, top_k=5, top_p=0.1)), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [1e-45, 1e-40, 1e-38, 1e-20, 0.99 * GREEDY_BELOW, 1.01 * GREEDY_BELOW])
def test_tiny_temperatures_take_the_most_likely_token_too(temperature: float) -> None:
    # A margin of 0.01 is 1000 at the limit, which no noise of 32 bits makes up for.
    logits = torch.tensor([[20.0, 30.0, 29.99, -5.0]]).expand(100, -1).contiguous()
    assert set(sample(logits, parameters(100, temperature=temperature)).tolist()) == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    rows = 40_000
    logits = one_distribution(rows)
    counts = torch.bincount(sample(logits, parameters(rows, temperature=temperature)), minlength=VOCABULARY)
    expected = (logits[0] / temperature).softmax(-1) * rows
    likely = expected >= 5
    chi_square = float(((counts - expected).square() / expected)[likely].sum())
    freedom = int(likely.sum())
    # Five standard deviations of chi-square, whose variance is twice its degrees of freedom.
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_top_k_draws_only_the_k_most_likely_tokens_and_all_of_them() -> None:
    logits = one_distribution(3000)
    drawn = set(sample(logits, parameters(3000, temperature=3.0, top_k=4)).tolist())
    assert drawn == set(logits[0].topk(4).indices.tolist())


def test_top_p_keeps_the_token_that_crosses_the_threshold_and_no_more() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(3000, -1).contiguous()
    for top_p, kept in ((0.4, {0}), (0.6, {0, 1}), (0.9, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        assert set(sample(logits, parameters(3000, top_p=top_p)).tolist()) == kept


def test_a_tiny_top_p_still_keeps_one_token() -> None:
    logits = one_distribution(100)
    assert set(sample(logits, parameters(100, top_p=1e-6)).tolist()) == {int(logits[0].argmax())}


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(2000, -1).contiguous()
    # Of the two that top-k leaves, the first has 0.57 and so reaches 0.5 alone.
    assert set(sample(logits, parameters(2000, top_k=2, top_p=0.5)).tolist()) == {0}


def test_the_same_seed_and_position_draw_the_same_token_in_every_batch() -> None:
    logits = torch.randn(30, VOCABULARY, generator=torch.Generator().manual_seed(2))
    together = parameters(30, seed=9)
    drawn = sample(logits, together)
    for row in range(30):
        alone = sample(logits[row : row + 1], parameters(1, seed=9, position=row))
        assert int(alone[0]) == int(drawn[row])


def test_a_greedy_neighbour_changes_nothing() -> None:
    logits = torch.randn(10, VOCABULARY, generator=torch.Generator().manual_seed(3))
    mixed = parameters(10)
    mixed.temperature[::2] = 0.0
    drawn = sample(logits, mixed)
    assert torch.equal(drawn[1::2], sample(logits, parameters(10))[1::2])
    assert torch.equal(drawn[::2], logits.argmax(-1)[::2])


def test_other_seeds_and_positions_draw_other_tokens() -> None:
    logits = one_distribution(200)
    first = sample(logits, parameters(200, seed=1))
    assert (first != sample(logits, parameters(200, seed=2))).float().mean() > 0.5
    assert (first != sample(logits, parameters(200, seed=1, position=1000))).float().mean() > 0.5


def test_neighbouring_positions_are_independent() -> None:
    logits = torch.zeros(20_000, 2)
    drawn = sample(logits, parameters(20_000)).float() - 0.5
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 0.25 * 5 / 20_000**0.5


def test_logprobs_are_those_of_the_model_whatever_was_cut() -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(4))
    tokens = torch.tensor([3, 0, 49, 7])
    got = logprobs(logits, tokens, top=5)
    every = logits.log_softmax(-1)
    assert torch.equal(got.chosen, every[torch.arange(4), tokens])
    assert torch.equal(got.top, every.sort(descending=True).values[:, :5])
    assert torch.equal(every.gather(1, got.top_ids), got.top)


def test_more_logprobs_than_tokens_give_all_of_them() -> None:
    assert logprobs(torch.zeros(1, 3), torch.tensor([0]), top=20).top.shape == (1, 3)


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(KernelInputError, match=r"logits is torch\.bfloat16"):
        sample(torch.zeros(1, 3).bfloat16(), parameters(1))
    with pytest.raises(KernelInputError, match=r"temperature has shape \[2\], needed \[1\]"):
        sample(torch.zeros(1, 3), parameters(2))
