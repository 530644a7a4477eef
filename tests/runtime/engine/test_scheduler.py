"""The scheduler alone, without a device: who runs, who waits, and for how long at most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.messages import Sampling, Submit
from octavo_runtime.engine.request import PRIORITY_SECONDS, EngineRequest
from octavo_runtime.engine.schedule import Schedule, SchedulerLimits
from octavo_runtime.engine.scheduler import Scheduler
from octavo_runtime.kv.holding import Nonces
from octavo_runtime.kv.manager import KvManager, Match
from octavo_runtime.kv.pool import PagePool
from octavo_runtime.kv.prefix import Chain, PrefixCache, PrefixEpoch

PAGE_SIZE = 4
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)


def scheduler_of(*, pages: int = 64, seqs: int = 4, tokens: int = 16, prefix_cache: bool = False) -> Scheduler:
    prefix = PrefixCache(PrefixEpoch("test", KvFormat.BF16, PAGE_SIZE)) if prefix_cache else None
    kv = KvManager(PagePool(pages + 1, PAGE_SIZE), Nonces(seed=3), prefix)
    return Scheduler(SchedulerLimits(seqs, tokens), kv)


def arrive(
    scheduler: Scheduler,
    order: int,
    prompt: int | Sequence[int],
    answer: int = 4,
    *,
    at: float = 0.0,
    priority: int = 0,
) -> EngineRequest:
    """A request with a prompt of its own (or the one given), which nobody shares."""
    return arrive_n(scheduler, order, prompt, answer, at=at, priority=priority)[0]


def arrive_n(
    scheduler: Scheduler,
    order: int,
    prompt: int | Sequence[int],
    answer: int = 4,
    *,
    at: float = 0.0,
    priority: int = 0,
    n: int = 1,
) -> list[EngineRequest]:
    tokens = [1000 + order] * prompt if isinstance(prompt, int) else list(prompt)
    message = Submit(f"r{order}", tokens, answer, GREEDY, [], n=n, priority=priority)
    requests = EngineRequest.answers(message, order, at)
    for request in requests:
        scheduler.submit(request)
    return requests


def run(scheduler: Scheduler) -> Schedule:
    """One step as the engine books it; finished requests leave."""
    schedule = scheduler.schedule()
    scheduler.kv.take_updates()
    for row in schedule.rows:
        request = row.request
        assert request.holding is not None
        assert request.chain is not None
        request.computed = row.end
        scheduler.kv.commit(request.holding, request.chain, row.start, row.end)
        if row.samples:
            request.tokens.append(1)
            if request.num_generated == request.max_tokens:
                scheduler.remove(request)
    scheduler.kv.check_integrity(scheduler.holdings())
    assert scheduler.waiting_tokens == sum(len(request.tokens) for request in scheduler.waiting)
    return schedule


def counts(schedule: Schedule) -> dict[str, int]:
    return {row.request.id: row.count for row in schedule.rows}


def test_a_long_prompt_is_cut_into_chunks_while_others_decode() -> None:
    scheduler = scheduler_of(tokens=8)
    arrive(scheduler, 1, prompt=3, answer=10)
    assert counts(run(scheduler)) == {"r1": 3}
    arrive(scheduler, 2, prompt=20)
    assert counts(run(scheduler)) == {"r1": 1, "r2": 7}
    assert counts(run(scheduler)) == {"r1": 1, "r2": 7}
    assert counts(run(scheduler)) == {"r1": 1, "r2": 6}
    assert counts(run(scheduler)) == {"r1": 1, "r2": 1}


def test_only_the_row_that_runs_the_last_known_token_samples() -> None:
    scheduler = scheduler_of(tokens=8)
    arrive(scheduler, 1, prompt=12)
    assert [row.samples for row in run(scheduler).rows] == [False]
    assert [row.samples for row in run(scheduler).rows] == [True]


def test_nobody_overtakes_the_head_of_the_line() -> None:
    scheduler = scheduler_of(pages=4, tokens=32)
    arrive(scheduler, 1, prompt=3 * PAGE_SIZE - 2, answer=2)
    run(scheduler)
    arrive(scheduler, 2, prompt=3 * PAGE_SIZE)
    arrive(scheduler, 3, prompt=1)
    assert counts(run(scheduler)) == {"r1": 1}, "r3 would fit, but r2 came first"
    assert set(counts(run(scheduler))) == {"r2", "r3"}


def test_the_newest_request_loses_its_pages_when_they_run_out() -> None:
    scheduler = scheduler_of(pages=4, tokens=32)
    old = arrive(scheduler, 1, prompt=2 * PAGE_SIZE, answer=8)
    new = arrive(scheduler, 2, prompt=2 * PAGE_SIZE, answer=8)
    run(scheduler)
    schedule = run(scheduler)
    assert counts(schedule) == {"r1": 1}
    assert schedule.preempted == (new,)
    assert (old.holding is not None, new.holding is None, new.computed) == (True, True, 0)
    assert len(new.tokens) == 2 * PAGE_SIZE + 1, "a preempted request keeps what it generated"


def test_a_preempted_request_comes_back_before_younger_ones() -> None:
    scheduler = scheduler_of(pages=4, tokens=32)
    arrive(scheduler, 1, prompt=2 * PAGE_SIZE, answer=3)
    arrive(scheduler, 2, prompt=2 * PAGE_SIZE, answer=3)
    arrive(scheduler, 3, prompt=1)
    order = [request_id for _ in range(12) for request_id in counts(run(scheduler))]
    assert scheduler.idle
    assert order.index("r2") < order.index("r3")
    assert order.count("r1") == 3, "the oldest is never preempted"


def test_pages_of_a_removed_request_serve_the_next_step() -> None:
    scheduler = scheduler_of(pages=2, tokens=32)
    first = arrive(scheduler, 1, prompt=2 * PAGE_SIZE)
    run(scheduler)
    arrive(scheduler, 2, prompt=2 * PAGE_SIZE)
    scheduler.remove(first)
    assert counts(run(scheduler)) == {"r2": 2 * PAGE_SIZE}


def test_a_request_that_pages_set_aside_left_no_room_for_is_given_back() -> None:
    scheduler = scheduler_of(pages=3, tokens=32)
    waiting = arrive(scheduler, 1, prompt=3 * PAGE_SIZE)
    lost = scheduler.kv.start(Match())
    scheduler.kv.extend(lost, 1)
    scheduler.kv.set_aside(lost)
    assert run(scheduler).impossible == (waiting,)
    assert scheduler.idle
    running = arrive(scheduler, 2, prompt=2 * PAGE_SIZE, answer=2)
    assert counts(run(scheduler)) == {"r2": 2 * PAGE_SIZE}
    assert run(scheduler).impossible == (running,)
    assert scheduler.idle
    assert scheduler.kv.free_pages == 2


def test_a_request_does_not_wait_for_ever_for_pages_that_nobody_holds() -> None:
    scheduler = scheduler_of(pages=3, tokens=32)
    scheduler.kv.extend(scheduler.kv.start(Match()), 1)  # lost by an error: held by no request
    waiting = arrive(scheduler, 1, prompt=3 * PAGE_SIZE)
    assert scheduler.schedule().impossible == (waiting,)
    assert scheduler.idle


def test_a_request_takes_the_lowest_free_slot() -> None:
    scheduler = scheduler_of(tokens=32)
    requests = [arrive(scheduler, order, prompt=3, answer=9) for order in range(3)]
    run(scheduler)
    assert [request.slot for request in requests] == [0, 1, 2]
    scheduler.remove(requests[0])
    scheduler.remove(requests[1])
    later = arrive(scheduler, 3, prompt=3)
    run(scheduler)
    assert (later.slot, requests[2].slot) == (0, 2)
    assert scheduler.slots == [later, None, requests[2], None]


def test_a_more_urgent_request_starts_before_those_who_wait_longer() -> None:
    scheduler = scheduler_of(seqs=1)
    arrive(scheduler, 1, prompt=2, answer=1)
    arrive(scheduler, 2, prompt=2, answer=1, at=0.0)
    arrive(scheduler, 3, prompt=2, answer=1, at=PRIORITY_SECONDS - 1, priority=-1)
    arrive(scheduler, 4, prompt=2, answer=1, at=3.0, priority=1)
    assert [next(iter(counts(run(scheduler)))) for _ in range(4)] == ["r3", "r1", "r2", "r4"]


def test_a_request_that_waited_long_enough_is_not_overtaken_any_more() -> None:
    scheduler = scheduler_of(seqs=1)
    arrive(scheduler, 1, prompt=2, answer=1)
    arrive(scheduler, 2, prompt=2, answer=1, at=10 * PRIORITY_SECONDS, priority=-10)
    arrive(scheduler, 3, prompt=2, answer=1, at=10 * PRIORITY_SECONDS - 1, priority=-10)
    assert [next(iter(counts(run(scheduler)))) for _ in range(3)] == ["r3", "r1", "r2"]


def test_the_least_urgent_request_loses_its_pages_first() -> None:
    scheduler = scheduler_of(pages=5, tokens=32)
    patient = arrive(scheduler, 1, prompt=2 * PAGE_SIZE, answer=8, priority=5)
    run(scheduler)
    arrive(scheduler, 2, prompt=2 * PAGE_SIZE - 1, answer=8)
    preempted = [request for _ in range(16) for request in run(scheduler).preempted]
    assert set(preempted) == {patient}


def test_nobody_gets_pages_that_were_promised_to_a_prompt_still_in_chunks() -> None:
    scheduler = scheduler_of(pages=6, tokens=4)
    arrive(scheduler, 1, prompt=5 * PAGE_SIZE, answer=1)
    run(scheduler)
    arrive(scheduler, 2, prompt=2 * PAGE_SIZE, answer=1)
    assert [list(counts(run(scheduler))) for _ in range(4)] == [["r1"]] * 4
    assert counts(run(scheduler)) == {"r2": PAGE_SIZE}


PREFIX = list(range(1, 4 * PAGE_SIZE + 1))


def test_a_cached_prefix_is_not_computed_again() -> None:
    scheduler = scheduler_of(tokens=64, prefix_cache=True)
    arrive(scheduler, 1, prompt=PREFIX, answer=1)
    run(scheduler)
    second = arrive(scheduler, 2, prompt=[*PREFIX, 99], answer=1)
    assert counts(run(scheduler)) == {"r2": 1}
    same = arrive(scheduler, 3, prompt=PREFIX, answer=1)
    assert counts(run(scheduler)) == {"r3": PAGE_SIZE}, "the last token is computed for its logits, so its page is"
    assert (second.holding, same.holding) == (None, None)


def test_prefixes_that_nobody_uses_are_evicted_before_anybody_is_preempted() -> None:
    scheduler = scheduler_of(pages=8, tokens=64, prefix_cache=True)
    arrive(scheduler, 1, prompt=PREFIX, answer=1)
    run(scheduler)
    assert scheduler.kv.retained_pages == 4
    arrive(scheduler, 2, prompt=3 * PAGE_SIZE, answer=4 * PAGE_SIZE)
    while not scheduler.idle:
        assert not run(scheduler).preempted


def test_a_prefix_to_be_read_is_not_counted_as_room_for_the_rest() -> None:
    scheduler = scheduler_of(pages=8, tokens=64, prefix_cache=True)
    arrive(scheduler, 1, prompt=PREFIX, answer=1)
    run(scheduler)
    arrive(scheduler, 2, prompt=2 * PAGE_SIZE - 1, answer=3)
    run(scheduler)
    arrive(scheduler, 3, prompt=[*PREFIX, *range(50, 50 + 3 * PAGE_SIZE)], answer=1)
    schedule = run(scheduler)
    assert counts(schedule) == {"r2": 1}, "r3 reads four pages and needs three more; there are two"
    assert not schedule.preempted
    run(scheduler)
    assert counts(run(scheduler)) == {"r3": 3 * PAGE_SIZE}


def test_forks_share_the_pages_of_the_prompt_and_compute_its_last_token_themselves() -> None:
    scheduler = scheduler_of(tokens=8)
    first, second, third = arrive_n(scheduler, 1, prompt=2 * PAGE_SIZE + 2, answer=3, n=3)
    behind = arrive(scheduler, 4, prompt=3)
    assert [row.request for row in run(scheduler).rows] == [first]
    assert [row.request for row in run(scheduler).rows] == [first], "the prompt is not complete before this step"
    schedule = run(scheduler)
    assert [(row.request, row.start, row.count, row.samples) for row in schedule.rows] == [
        (first, 2 * PAGE_SIZE + 2, 1, True),
        (second, 2 * PAGE_SIZE + 1, 1, True),
        (third, 2 * PAGE_SIZE + 1, 1, True),
        (behind, 0, 3, True),
    ]
    held = [request.holding.pages[:2] for request in (first, second, third) if request.holding is not None]
    assert held[0] == held[1] == held[2]


@pytest.mark.parametrize("lost", ["cancelled", "preempted"])
def test_a_fork_whose_first_answer_is_gone_computes_the_prompt_itself(lost: str) -> None:
    scheduler = scheduler_of(tokens=8, seqs=1)
    first, second = arrive_n(scheduler, 1, prompt=PAGE_SIZE + 1, answer=2, n=2)
    run(scheduler)
    if lost == "cancelled":
        scheduler.remove(first)
    else:
        scheduler.restart(first)
        while first.num_generated != 2:
            run(scheduler)
    assert [(row.request, row.count) for row in run(scheduler).rows] == [(second, PAGE_SIZE + 1)]


def test_a_budget_below_one_token_for_each_request_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens_per_step \(3\) must be at least max_num_seqs \(4\)"):
        SchedulerLimits(max_num_seqs=4, tokens_per_step=3)


Arrivals = list[tuple[int, int, int]]
"""(step of arrival, prompt tokens, answer tokens) of each request."""
POOL_PAGES = 12


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 30), st.integers(1, 18)), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_every_request_ends_within_the_steps_that_the_older_ones_tokens_allow(
    arrivals: Arrivals, seqs: int, spare: int
) -> None:
    """No starvation and no livelock: request k ends within as many steps as requests 1..k have tokens together."""
    scheduler = scheduler_of(pages=POOL_PAGES, seqs=seqs, tokens=seqs + spare)
    ordered = sorted(arrivals)
    requests: list[EngineRequest] = []
    ended_at: dict[str, int] = {}
    bound = ordered[-1][0] + sum(prompt + answer for _, prompt, answer in ordered)
    for step in range(bound + 1):
        for _, prompt, answer in (a for a in ordered if a[0] == step):
            requests.append(arrive(scheduler, len(requests), prompt, answer))
        schedule = run(scheduler)
        assert not schedule.impossible
        assert sum(row.count for row in schedule.rows) <= scheduler.limits.tokens_per_step
        ended_at |= {r.id: step for r in requests if r.num_generated == r.max_tokens and r.id not in ended_at}
    assert scheduler.idle
    assert_within_bound(ordered, ended_at)


@dataclass(frozen=True)
class Moment:
    """Who there was when a step began."""

    unended: frozenset[EngineRequest]
    running: frozenset[EngineRequest]


def tokens_of(requests: Iterable[EngineRequest]) -> int:
    return sum(request.prompt_len + request.max_tokens for request in requests)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.integers(1, 30), st.integers(1, 18), st.integers(-10, 10), st.integers(1, 3)),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 4),
    st.integers(0, 12),
    st.sampled_from([1.0, 40.0, 200.0]),
    st.booleans(),
)
def test_nobody_starves_whatever_the_priorities(
    arrivals: list[tuple[int, int, int, int, int]], seqs: int, spare: int, step_seconds: float, prefix_cache: bool
) -> None:
    """The bound of the scheduler's docstring: tokens(S) + tokens(B) steps after the last one that may overtake."""
    scheduler = scheduler_of(pages=POOL_PAGES, seqs=seqs, tokens=seqs + spare, prefix_cache=prefix_cache)
    requests: list[EngineRequest] = []
    arrived: dict[EngineRequest, int] = {}
    ended: dict[EngineRequest, int] = {}
    moments: list[Moment] = []
    step = 0
    while step < 16 or not scheduler.idle:
        for when, prompt, answer, priority, n in arrivals:
            if when == step:
                at = step * step_seconds
                new = arrive_n(scheduler, len(requests), prompt, answer, at=at, priority=priority, n=n)
                requests += new
                arrived |= dict.fromkeys(new, step)
        moments.append(Moment(frozenset(requests) - ended.keys(), frozenset(scheduler.running)))
        assert not run(scheduler).impossible
        ended |= {r: step for r in requests if r.num_generated == r.max_tokens and r not in ended}
        step += 1
        assert step < 10_000
    for request in requests:
        ahead = {other for other in requests if other.rank <= request.rank}
        last = max(ahead, key=lambda other: arrived[other])
        then = moments[arrived[last]]
        assert ended[request] - arrived[last] < tokens_of(then.unended & ahead) + tokens_of(then.running)
        assert all(arrived[r] <= arrived[request] + 20 * PRIORITY_SECONDS / step_seconds for r in ahead)
    assert scheduler.kv.used_pages == 0


def assert_within_bound(ordered: Sequence[tuple[int, int, int]], ended_at: dict[str, int]) -> None:
    tokens = 0
    for index, (arrived, prompt, answer) in enumerate(ordered):
        tokens += prompt + answer
        assert ended_at[f"r{index}"] <= arrived + tokens


def test_a_request_that_does_not_fit_is_looked_up_again_only_when_there_is_more_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = scheduler_of(pages=8, tokens=64, prefix_cache=True)
    arrive(scheduler, 1, prompt=5 * PAGE_SIZE - 1, answer=9)
    run(scheduler)
    arrive(scheduler, 2, prompt=6 * PAGE_SIZE, answer=1)
    looked_up: list[int] = []
    match = scheduler.kv.match

    def counting(chain: Chain, tokens: int) -> Match:
        looked_up.append(tokens)
        return match(chain, tokens)

    monkeypatch.setattr(scheduler.kv, "match", counting)
    steps = 0
    while "r2" not in counts(run(scheduler)):
        steps += 1
    assert steps == 8
    assert len(looked_up) == 2, "when it came and when the pages of the first request were free"
