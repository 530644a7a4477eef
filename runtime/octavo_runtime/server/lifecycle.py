"""Lifecycle: what this server does with new requests, from loading to drained.

    loading --ready--> serving --drain--> announcing --announce_seconds--> refusing (drained once nothing is in flight)

While announcing, everything is still served, but each response closes its connection, so that clients come back
through endpoints that no longer list this pod. A drain while loading refuses at once. Refusing answers 503 to new
requests and lets open ones end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Phase(StrEnum):
    """Where the server is in its life."""

    LOADING = "loading"
    SERVING = "serving"
    ANNOUNCING = "announcing"
    REFUSING = "refusing"


class Lifecycle:
    """Phases on an injected monotonic clock, and the count of requests in flight. Belongs to the event loop."""

    def __init__(self, clock: Callable[[], float], announce_seconds: float, drain_seconds: float) -> None:
        self._clock = clock
        self._announce_seconds = announce_seconds
        self._drain_seconds = drain_seconds
        self._loaded = False
        self._drain_began: float | None = None
        self._announce_ended = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.stop_requested = asyncio.Event()
        """Set by a signal: end once drained. A drain alone, asked for over HTTP, does not end the process."""
        self.abort_requested = asyncio.Event()
        """Set by a second Ctrl-C: do not wait for open requests."""

    @property
    def phase(self) -> Phase:
        """The phase now."""
        if self._drain_began is not None:
            return Phase.ANNOUNCING if self.announce_left_seconds > 0 else Phase.REFUSING
        return Phase.SERVING if self._loaded else Phase.LOADING

    @property
    def announce_left_seconds(self) -> float:
        """Seconds until new requests are refused, once a drain has begun."""
        if self._announce_ended:
            return 0.0
        if self._drain_began is None:
            return self._announce_seconds
        return max(0.0, self._drain_began + self._announce_seconds - self._clock())

    @property
    def drain_left_seconds(self) -> float:
        """Seconds until open requests are aborted. They count from the drain's beginning: a preStop hook that began it
        has used up its share when the signal comes."""
        began = self._clock() if self._drain_began is None else self._drain_began
        return max(0.0, began + self._announce_seconds + self._drain_seconds - self._clock())

    @property
    def in_flight(self) -> int:
        """Requests whose response is not complete."""
        return self._in_flight

    @property
    def drained(self) -> bool:
        """Whether new requests are refused and none is in flight."""
        return self.phase is Phase.REFUSING and self._in_flight == 0

    def loaded(self) -> None:
        """The engine answers from now on."""
        self._loaded = True

    def begin_drain(self) -> None:
        """Begin to drain; a second call changes nothing. A server that is loading has nothing to announce: no endpoint
        lists it yet, so it refuses at once."""
        if self._drain_began is None:
            self._drain_began = self._clock()
            self._announce_ended = not self._loaded

    def end_announce(self) -> None:
        """Refuse new requests from now on; open requests keep their time to end."""
        self.begin_drain()
        self._announce_ended = True

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request in flight."""
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Until no request is in flight."""
        await self._idle.wait()
