"""Sampling: the right distribution, the right cuts, and draws that depend on nothing but the request."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.sampling import GREEDY_BELOW, LogitAdjustments, SamplingParameters
from octavo_kernels.reference.sampling import adjust, logprobs, sample

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


def test_min_p_keeps_what_is_likely_enough_beside_the_best_after_temperature() -> None:
    logits = torch.tensor([0.04, 0.2, 0.26, 0.5]).log().expand(3000, -1).contiguous()
    for temperature, min_p, kept in (
        (1.0, 0.5, {2, 3}),
        (1.0, 0.1, {1, 2, 3}),
        (2.0, 0.5, {1, 2, 3}),
        (1.0, 1.0, {3}),
        (1.0, 0.0, {0, 1, 2, 3}),
    ):
        settings = replace(parameters(3000, temperature=temperature), min_p=torch.full((3000,), min_p))
        assert set(sample(logits, settings).tolist()) == kept


def test_min_p_counts_beside_the_best_of_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(2000, -1).contiguous()
    settings = replace(parameters(2000, top_k=3), min_p=torch.full((2000,), 0.6))
    assert set(sample(logits, settings).tolist()) == {0, 1}


def adjustments(rows: int, entries: list[tuple[int, int, float, int, bool]], **penalties: float) -> LogitAdjustments:
    """(row, token, bias, count, in prompt) each; penalties the same for every row."""
    columns = list(zip(*entries, strict=True)) if entries else [()] * 5
    return LogitAdjustments(
        rows=torch.tensor(columns[0], dtype=torch.int64),
        tokens=torch.tensor(columns[1], dtype=torch.int64),
        bias=torch.tensor(columns[2], dtype=torch.float32),
        count=torch.tensor(columns[3], dtype=torch.int32),
        in_prompt=torch.tensor(columns[4], dtype=torch.bool),
        repetition=torch.full((rows,), penalties.get("repetition", 1.0)),
        presence=torch.full((rows,), penalties.get("presence", 0.0)),
        frequency=torch.full((rows,), penalties.get("frequency", 0.0)),
    )


def test_penalties_and_bias_follow_the_documented_order() -> None:
    logits = torch.tensor([[2.0, -2.0, 4.0, 1.0]])
    entries = [(0, 0, 0.5, 3, False), (0, 1, 0.0, 0, True), (0, 3, -1.0, 0, False)]
    got = adjust(logits, adjustments(1, entries, repetition=2.0, presence=0.25, frequency=0.1))
    # 2 / 2 - 3 * 0.1 - 0.25 + 0.5; -2 * 2 and no count; untouched; bias alone.
    assert got[0].tolist() == pytest.approx([0.95, -4.0, 4.0, 0.0], abs=1e-6)
    assert logits.tolist() == [[2.0, -2.0, 4.0, 1.0]]


def test_a_forbidden_token_is_never_drawn_and_a_wanted_one_always() -> None:
    logits = one_distribution(400)
    best = int(logits[0].argmax())
    forbid = adjustments(400, [(row, best, -torch.inf, 0, False) for row in range(400)])
    want = adjustments(400, [(row, 7, 100.0, 0, False) for row in range(400)])
    for temperature in (0.0, 1.0):
        settings = parameters(400, temperature=temperature)
        assert best not in sample(logits, replace(settings, adjustments=forbid)).tolist()
        assert set(sample(logits, replace(settings, adjustments=want)).tolist()) == {7}


def test_adjustments_touch_their_own_row_only() -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(5))
    got = adjust(logits, adjustments(3, [(1, 4, 9.0, 0, False)]))
    assert torch.equal(got[[0, 2]], logits[[0, 2]])
    assert torch.equal(adjust(logits, adjustments(3, [], repetition=3.0, presence=1.0)), logits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_not_drawn_and_do_not_crash(temperature: float) -> None:
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor(
        [[nan, 1.0, nan, -inf], [nan] * 4, [-inf] * 4, [0.0, inf, nan, inf], [-inf, nan, -inf, -50.0]]
    )
    settings = parameters(5, temperature=temperature, top_p=0.9)
    settings.top_k[:2] = 2
    settings = replace(settings, min_p=torch.full((5,), 0.1))
    assert sample(logits, settings).tolist() == [1, 0, 0, 1, 3]


def test_a_row_of_nan_changes_no_neighbour() -> None:
    logits = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(6))
    clean = sample(logits, parameters(6, top_p=0.8))
    logits[3] = torch.nan
    drawn = sample(logits, parameters(6, top_p=0.8)).tolist()
    assert drawn[:3] + drawn[4:] == clean[:3].tolist() + clean[4:].tolist()


@pytest.mark.parametrize("vocabulary", [1, 2, 61, 1000])
def test_odd_vocabularies_and_every_setting_draw_in_range(vocabulary: int) -> None:
    logits = torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(7)) * 10
    settings = replace(parameters(5, top_k=3, top_p=0.7), min_p=torch.full((5,), 0.05))
    together = sample(logits, settings)
    assert ((together >= 0) & (together < vocabulary)).all()
    for row in range(5):
        alone = replace(parameters(1, top_k=3, top_p=0.7, position=row), min_p=torch.full((1,), 0.05))
        assert int(sample(logits[row : row + 1], alone)[0]) == int(together[row])


def test_no_rows_draw_nothing() -> None:
    assert sample(torch.zeros(0, 9), parameters(0)).shape == (0,)
    assert logprobs(torch.zeros(0, 9), torch.zeros(0, dtype=torch.int64), top=2).top_ids.shape == (0, 2)


def test_equally_likely_tokens_are_listed_by_id_and_nan_says_nan() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0], [0.0, torch.nan, 3.0, 1.0]])
    got = logprobs(logits, torch.tensor([0, 2]), top=3)
    assert got.top_ids.tolist() == [[1, 3, 0], [2, 3, 0]]
    assert got.chosen.isnan().tolist() == [False, True]
    assert got.top.isnan().tolist() == [[False] * 3, [True] * 3]


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
    with pytest.raises(KernelInputError, match=r"adjustments\.tokens has 3 to 3, needed 0 to 2"):
        adjust(torch.zeros(1, 3), adjustments(1, [(0, 3, 0.0, 0, False)]))
    with pytest.raises(KernelInputError, match="tokens has -1 to -1, needed 0 to 2"):
        logprobs(torch.zeros(1, 3), torch.tensor([-1]), top=1)
