"""Continuous batching with a model whose answers betray every wrong page."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.formats.sampling import SamplingParameters
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.messages import FinishReason
from tests.runtime.engine.provenance import OPERATIONS, expected_answer
from tests.runtime.engine.rig import rig_of


def test_a_request_gives_the_answer_of_its_own_prompt() -> None:
    rig = rig_of()
    rig.submit("a", [7, 8, 9], 10)
    rig.run()
    assert rig.tokens["a"] == expected_answer([7, 8, 9], 10)
    assert rig.finished == {"a": FinishReason.LENGTH}


def test_tokens_are_drawn_by_the_chosen_implementation() -> None:
    def sample_next_to_it(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
        return OPERATIONS.sample(logits, parameters) - 1

    rig = rig_of(operations=replace(OPERATIONS, sample=sample_next_to_it))
    rig.submit("a", [7, 8, 9], 1)
    rig.run()
    assert rig.tokens["a"] == [expected_answer([7, 8, 9], 1)[0] - 1]


def test_the_same_holds_for_fp8_pages() -> None:
    rig = rig_of(kv=KvFormat.FP8)
    rig.submit("a", [501, 17, 300], 10)
    rig.run()
    assert rig.tokens["a"] == expected_answer([501, 17, 300], 10)


def test_requests_join_and_leave_a_running_batch() -> None:
    rig = rig_of(seqs=2)
    rig.submit("a", [1, 2], 6)
    rig.step()
    rig.submit("b", [3], 2)
    rig.submit("c", [4, 5, 6], 3)
    rig.step()
    assert (rig.engine.stats().running, rig.engine.stats().waiting) == (2, 1)
    rig.run()
    assert rig.tokens == {
        "a": expected_answer([1, 2], 6),
        "b": expected_answer([3], 2),
        "c": expected_answer([4, 5, 6], 3),
    }


def test_a_stop_token_ends_the_answer() -> None:
    rig = rig_of()
    answer = expected_answer([5, 5], 8)
    rig.submit("a", [5, 5], 8, stop_tokens=[answer[3]])
    rig.run()
    assert rig.tokens["a"] == answer[: answer.index(answer[3]) + 1]
    assert rig.finished["a"] is FinishReason.STOP


def test_a_cancelled_requests_pages_are_free_at_the_next_step() -> None:
    rig = rig_of(pages=4)
    rig.submit("a", [1] * 14, 3)
    rig.step()
    rig.submit("b", [2] * 14, 3)
    rig.step()
    assert "b" not in rig.tokens
    rig.engine.cancel("a")
    rig.step()
    assert rig.tokens["b"] == expected_answer([2] * 14, 1)
    rig.run()
    assert (rig.tokens["b"], len(rig.tokens["a"])) == (expected_answer([2] * 14, 3), 2)
    assert rig.engine.stats().kv_tokens_used == 0


def test_cancelling_an_unknown_request_changes_nothing() -> None:
    rig = rig_of()
    rig.engine.cancel("nobody")
    assert rig.engine.idle


def test_preempted_requests_give_the_same_answer() -> None:
    rig = rig_of(pages=6, tokens_per_step=32)
    prompts = {name: [index + 1] * 7 for index, name in enumerate("abcd")}
    for name, prompt in prompts.items():
        rig.submit(name, prompt, 14)
    rig.run()
    assert rig.engine.stats().preemptions > 0
    assert rig.tokens == {name: expected_answer(prompt, 14) for name, prompt in prompts.items()}
    assert not rig.violations


def test_the_device_is_told_of_every_change_before_the_step() -> None:
    rig = rig_of(pages=6, tokens_per_step=32)
    for name in "abc":
        rig.submit(name, [3] * 7, 9)
    for _ in range(12):
        rig.step()
    rig.cache.records.apply(rig.kv.take_updates().records)
    ours, theirs = rig.pool.records(), rig.cache.records
    assert ours.tags.tolist() == theirs.tag.tolist()
    assert ours.places.tolist() == theirs.place.tolist()
    assert ours.writers.tolist() == theirs.writer.tolist()


Case = tuple[list[int], int, int]
"""(prompt, tokens of the answer, step of arrival)."""


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 511), min_size=1, max_size=20), st.integers(1, 12), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 5),
    st.integers(0, 11),
    st.integers(8, 30),
)
def test_answers_are_independent_of_batching_chunking_and_preemption(
    cases: list[Case], seqs: int, spare: int, pages: int
) -> None:
    rig = rig_of(pages=pages, seqs=seqs, tokens_per_step=seqs + spare)
    for step in range(10):
        for index, (prompt, answer, arrival) in enumerate(cases):
            if arrival == step:
                rig.submit(str(index), prompt, answer)
        rig.step()
    rig.run()
    assert not rig.violations
    assert dict(rig.tokens) == {
        str(index): expected_answer(prompt, answer) for index, (prompt, answer, _) in enumerate(cases)
    }
    assert rig.engine.stats().kv_tokens_used == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_arrivals_and_cancels_at_twice_the_capacity_leak_nothing(seed: int) -> None:
    chance = random.Random(seed)
    rig = rig_of(pages=24, seqs=6, tokens_per_step=20)
    prompts: dict[str, tuple[list[int], int]] = {}
    cancelled: set[str] = set()
    for step in range(250):
        while len(rig.scheduler.waiting) < 6 and chance.random() < 0.7:
            name = f"r{len(prompts)}"
            prompts[name] = ([chance.randrange(1, 512) for _ in range(chance.randint(1, 40))], chance.randint(1, 20))
            rig.submit(name, *prompts[name])
        if chance.random() < 0.2:
            name = chance.choice(list(prompts))
            cancelled.add(name)
            rig.engine.cancel(name)
        if step % 50 == 0:
            rig.engine.audit()
        rig.step()
    rig.run()
    assert not rig.violations
    assert rig.engine.stats().preemptions > 0
    assert rig.engine.stats().kv_tokens_used == 0
    for name, (prompt, answer) in prompts.items():
        expected = expected_answer(prompt, answer)
        given = rig.tokens.get(name, [])
        assert given == (expected[: len(given)] if name in cancelled else expected)
