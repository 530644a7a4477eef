"""A work queue of keys with the semantics of client-go's: the reason a reconcile never races with itself.

A key that is added while it waits is one key. A key that is added while a worker has it waits until that worker is done
and then runs once more. Delayed adds keep the earliest time. Failures back off per key, with jitter, until `forget`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)

BACKOFF_BASE_SECONDS = 0.05
BACKOFF_CAP_SECONDS = 300.0
JITTER = 0.2
"""Share by which a delay is lengthened at random, so that keys that failed together do not return together."""


class TimerHandle(Protocol):
    """A scheduled callback."""

    def cancel(self) -> object:
        """Do not call it."""


class Clock(Protocol):
    """Monotonic time in seconds; tests inject their own."""

    def time(self) -> float:
        """Now."""

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back at a time."""


class LoopClock:
    """The running event loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def time(self) -> float:
        """Now, monotonic."""
        return self._loop.time()

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back at a time."""
        return self._loop.call_at(when, callback)


class WorkQueue(Generic[Key]):
    """Keys that want attention."""

    def __init__(self, clock: Clock, jitter: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._jitter = jitter
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._dirty: set[Key] = set()
        self._processing: set[Key] = set()
        self._due: dict[Key, tuple[float, TimerHandle]] = {}
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._dirty)

    def add(self, key: Key) -> None:
        """Have `key` worked on as soon as a worker is free."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Add later; an earlier appointment of the same key stands."""
        when = self._clock.time() + max(0.0, seconds)
        if key in self._due:
            earlier, handle = self._due[key]
            if earlier <= when:
                return
            handle.cancel()
        self._due[key] = (when, self._clock.call_at(when, lambda: self._fire(key)))

    def add_rate_limited(self, key: Key) -> float:
        """Add after this key's next back-off delay, which is returned in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(BACKOFF_BASE_SECONDS * float(2 ** min(failures, 32)), BACKOFF_CAP_SECONDS)
        delay *= 1 + JITTER * self._jitter()
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """It went well: the next failure starts from the shortest delay."""
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """The next key; call `done` when finished with it."""
        key = await self._ready.get()
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: Key) -> None:
        """Give the key back; if it was added meanwhile, it is up again."""
        self._processing.discard(key)
        if key in self._dirty:
            self._ready.put_nowait(key)

    def idle(self) -> bool:
        """Whether nothing waits and nothing is being worked on (appointments may be in the future)."""
        return not self._dirty and not self._processing

    def _fire(self, key: Key) -> None:
        self._due.pop(key, None)
        self.add(key)


async def work(queue: WorkQueue[Key], handle: Callable[[Key], Awaitable[None]]) -> None:
    """One worker: take a key, handle it, give it back. `handle` deals with its own errors."""
    while True:
        key = await queue.get()
        try:
            await handle(key)
        finally:
            queue.done(key)
