"""Continuous batching with a model whose answers betray every wrong page."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.formats.sampling import SamplingParameters
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.engine import KV_POOL_TOO_SMALL
from octavo_runtime.engine.messages import FinishReason, Sampling
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


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_n_answers_share_the_prompt_and_each_is_right(prefix_cache: bool) -> None:
    rig = rig_of(prefix_cache=prefix_cache, seqs=4, tokens_per_step=16)
    prompt = [9] * 10
    rig.submit("a", prompt, 5, n=3)
    rig.run()
    assert rig.answers == {("a", index): expected_answer(prompt, 5) for index in range(3)}
    assert set(rig.finishes.values()) == {FinishReason.LENGTH}
    stats = rig.engine.stats()
    assert (stats.forks, stats.pages_copied) == (2, 2), "the prompt is two full pages and a partial one"
    assert stats.kv_tokens_used == 0
    assert not rig.violations


def test_forks_hold_the_prompts_full_pages_once() -> None:
    rig = rig_of(tokens_per_step=32)
    rig.submit("a", [9] * 17, 9, n=3)
    rig.step()
    rig.step()
    assert rig.engine.stats().running == 3
    assert rig.engine.stats().kv_tokens_used == 4 * 4 + 3 * 4


def test_an_answer_of_several_is_the_one_that_its_own_seed_gives() -> None:
    def drawn(n: int, seed: int) -> dict[tuple[str, int], list[int]]:
        rig = rig_of(tokens_per_step=32)
        rig.submit("a", [9] * 10, 8, n=n, sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=seed))
        rig.run()
        return rig.answers

    together = drawn(n=3, seed=40)
    assert [together["a", index] for index in range(3)] == [drawn(n=1, seed=40 + i)["a", 0] for i in range(3)]
    assert len({tuple(answer) for answer in together.values()}) == 3


def test_a_cancel_ends_all_answers_and_one_with_an_index_only_that_one() -> None:
    rig = rig_of()
    rig.submit("a", [1, 2, 3], 8, n=3)
    rig.step()
    rig.step()
    rig.engine.cancel("a", 1)
    rig.engine.cancel("a", 1)
    rig.step()
    assert rig.engine.stats().running == 2
    rig.engine.cancel("a")
    assert rig.engine.idle
    assert rig.engine.stats().kv_tokens_used == 0


def test_a_stop_token_ends_one_answer_and_the_others_go_on() -> None:
    rig = rig_of()
    answer = expected_answer([5, 5], 8)
    rig.submit("a", [5, 5], 8, stop_tokens=[answer[3]], n=2)
    rig.run()
    assert rig.answers["a", 0] == rig.answers["a", 1] == answer[: answer.index(answer[3]) + 1]


def test_a_request_larger_than_the_pool_is_refused_with_its_numbers() -> None:
    rig = rig_of(pages=4, page_size=4)
    rig.submit("large", [1] * 10, 8, n=2)
    rig.submit("fits", [1] * 10, 7)
    assert not rig.engine.idle
    rig.run()
    assert rig.failed.keys() == {"large"}
    assert rig.failed["large"].code == KV_POOL_TOO_SMALL
    assert not rig.failed["large"].retryable
    assert "10 prompt tokens and 8 of an answer need 5 KV pages; there are 4 of 4 tokens" in rig.failed["large"].message
    assert rig.tokens == {"fits": expected_answer([1] * 10, 7)}


def test_a_prompt_that_begins_like_an_earlier_one_is_computed_from_there_on() -> None:
    rig = rig_of(tokens_per_step=40)
    prompt = list(range(1, 21))
    rig.submit("a", prompt, 3)
    rig.run()
    rig.submit("b", [*prompt, 77], 3)
    rig.run()
    assert rig.tokens["b"] == expected_answer([*prompt, 77], 3)
    stats = rig.engine.stats()
    assert (stats.prefix_queried_tokens, stats.prefix_hit_tokens) == (20 + 21, 20)
    assert stats.kv_tokens_retained > 0


def test_another_salt_shares_nothing() -> None:
    rig = rig_of(tokens_per_step=40)
    for name, salt in (("a", ""), ("b", "other")):
        rig.submit(name, list(range(1, 21)), 3, salt=salt)
        rig.run()
    assert rig.engine.stats().prefix_hit_tokens == 0


def test_a_more_urgent_request_is_answered_first_by_the_engines_clock() -> None:
    rig = rig_of(seqs=1)
    rig.submit("first", [1], 2)
    rig.clock.now = 20.0
    rig.submit("urgent", [2], 2, priority=-1)
    rig.clock.now = 31.0
    rig.submit("late", [3], 2, priority=-1)
    rig.run()
    assert list(rig.answers) == [("urgent", 0), ("first", 0), ("late", 0)]


def test_waiting_tokens_are_the_known_tokens_of_those_who_wait() -> None:
    rig = rig_of(seqs=1)
    rig.submit("a", [1, 2], 4)
    rig.submit("b", [3, 4, 5], 4, n=2)
    rig.step()
    assert rig.engine.stats().waiting_tokens == 6


@pytest.mark.parametrize("buckets", [(8,), (1, 2, 4), (2,)])
def test_padded_steps_give_the_same_answers(buckets: tuple[int, ...]) -> None:
    rig = rig_of(seqs=4, pad_decode_to=buckets)
    prompts = {"a": [1, 2], "b": [3] * 9, "c": [4, 5, 6]}
    for index, (name, prompt) in enumerate(prompts.items()):
        rig.submit(name, prompt, 4 + 3 * index, n=1 + index % 2)
    rig.run()
    assert not rig.violations
    assert rig.tokens == {name: expected_answer(prompts[name], 4 + 3 * index) for index, name in enumerate(prompts)}


@dataclass(frozen=True)
class Case:
    """One request, when it arrives and when its patience ends."""

    prompt: list[int]
    answer: int
    arrival: int
    priority: int
    n: int
    cancelled: int | None


CASES = st.lists(
    st.builds(
        Case,
        prompt=st.one_of(
            st.lists(st.integers(1, 511), min_size=1, max_size=20),
            st.integers(1, 20).map(lambda length: list(range(1, length + 1))),
        ),
        answer=st.integers(1, 12),
        arrival=st.integers(0, 9),
        priority=st.integers(-2, 2),
        n=st.sampled_from([1, 1, 2, 3]),
        cancelled=st.one_of(st.none(), st.integers(0, 14)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(CASES, st.integers(1, 5), st.integers(0, 11), st.integers(8, 30), st.booleans(), st.sampled_from([(), (4, 8)]))
def test_answers_do_not_depend_on_who_else_is_served_and_how(
    cases: list[Case], seqs: int, spare: int, pages: int, prefix_cache: bool, buckets: tuple[int, ...]
) -> None:
    """Whatever the mix of chunks, priorities, prefix hits, forks, preemptions and cancels."""
    rig = rig_of(pages=pages, seqs=seqs, tokens_per_step=seqs + spare, prefix_cache=prefix_cache, pad_decode_to=buckets)
    for step in range(15):
        rig.clock.now = 25.0 * step
        for index, case in enumerate(cases):
            if case.arrival == step:
                rig.submit(str(index), case.prompt, case.answer, n=case.n, priority=case.priority)
            if case.cancelled == step:
                rig.engine.cancel(str(index))
        rig.step()
    rig.run()
    assert not rig.violations
    for index, case in enumerate(cases):
        expected = expected_answer(case.prompt, case.answer)
        for answer in range(case.n):
            given = rig.answers.get((str(index), answer), [])
            assert given == (expected if case.cancelled is None else expected[: len(given)])
    stats = rig.engine.stats()
    assert (stats.kv_tokens_used, stats.running, stats.waiting) == (0, 0, 0)
    assert stats.kv_pages_free + stats.kv_tokens_retained // 4 == pages


@pytest.mark.parametrize("seed", [1, 3])
def test_arrivals_and_cancels_at_twice_the_capacity_leak_nothing(seed: int) -> None:
    chance = random.Random(seed)
    rig = rig_of(pages=24, seqs=6, tokens_per_step=20, pad_decode_to=(4, 6) if seed == 3 else ())
    shared = [chance.randrange(1, 512) for _ in range(40)]
    prompts: dict[str, tuple[list[int], int]] = {}
    cancelled: set[str] = set()
    for step in range(120):
        while len(rig.scheduler.waiting) < 6 and chance.random() < 0.7:
            name = f"r{len(prompts)}"
            prompt = [chance.randrange(1, 512) for _ in range(chance.randint(1, 40))]
            if chance.random() < 0.5:
                prompt[: chance.randint(1, 40)] = shared[: len(prompt)]
            prompts[name] = (prompt[:40], chance.randint(1, 20))
            rig.submit(name, *prompts[name], n=chance.choice([1, 1, 2]), priority=chance.randint(-1, 1))
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
    assert rig.engine.stats().forks > 0
    assert rig.engine.stats().prefix_hit_tokens > 0
