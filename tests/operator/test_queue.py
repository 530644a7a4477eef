"""The work queue keeps client-go's promises."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from octavo_operator.cluster.queue import BACKOFF_CAP_SECONDS, TimerHandle, WorkQueue, work


class ManualClock:
    """Time that moves only when told to."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when, len(self._timers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        self._now += seconds
        while self._timers and self._timers[0][0] <= self._now:
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback()


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def make() -> tuple[WorkQueue[str], ManualClock]:
    clock = ManualClock()
    return WorkQueue(clock, jitter=lambda: 0.0), clock


async def test_a_key_that_waits_is_one_key() -> None:
    queue, _ = make()
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert queue.idle()


async def test_a_key_added_while_it_is_worked_on_comes_up_once_more_and_not_before_done() -> None:
    queue, _ = make()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b", "a is being worked on"
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    queue.done("b")
    assert queue.idle()


async def test_a_delayed_key_comes_at_its_time_and_the_earliest_appointment_stands() -> None:
    queue, clock = make()
    queue.add_after("a", 10)
    queue.add_after("a", 60)
    queue.add_after("a", 5)
    clock.advance(4.9)
    assert queue.idle()
    clock.advance(0.1)
    assert await queue.get() == "a"
    queue.done("a")
    clock.advance(100)
    assert queue.idle(), "later appointments of the same key are gone"


async def test_failures_back_off_per_key_up_to_a_cap_and_forget_starts_over() -> None:
    queue, _ = make()
    delays = [queue.add_rate_limited("a") for _ in range(20)]
    assert delays[:4] == [0.05, 0.1, 0.2, 0.4]
    assert delays[-1] == BACKOFF_CAP_SECONDS
    assert queue.add_rate_limited("b") == 0.05
    queue.forget("a")
    assert queue.add_rate_limited("a") == 0.05


async def test_no_two_workers_ever_have_the_same_key() -> None:
    queue, _ = make()
    active: set[str] = set()
    handled: list[str] = []

    async def handle(key: str) -> None:
        assert key not in active
        active.add(key)
        for _ in range(3):
            await asyncio.sleep(0)
            queue.add(f"k{len(handled) % 5}")
        active.remove(key)
        handled.append(key)
        if len(handled) >= 500:
            finished.set()

    finished = asyncio.Event()
    for number in range(5):
        queue.add(f"k{number}")
    async with asyncio.timeout(20):
        workers = [asyncio.create_task(work(queue, handle)) for _ in range(4)]
        await finished.wait()
    for worker in workers:
        worker.cancel()
    results = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
