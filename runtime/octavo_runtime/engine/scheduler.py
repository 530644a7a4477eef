"""Scheduler: which requests run in the next step, and how many tokens of each.

Pure bookkeeping: no device, no clock, no I/O. First come, first served, and nobody is overtaken:

- `waiting` and `running` are both kept in arrival order. Only the head of `waiting` may start.
- Each step spends at most `tokens_per_step` tokens. Decoding requests come first with one token each, then prompts in
  arrival order take what is left, cut into chunks; so a long prompt never stops others from decoding.
- When pages run out the newest running request loses its pages and starts again later from its own tokens.

The bound that follows (and is tested): `tokens_per_step >= max_num_seqs` leaves at least one token to the oldest
request in every step, and the oldest is never preempted. So request k has ended after at most as many steps as the
tokens of requests 1..k together, whatever arrives behind it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.kv.pool import Holding, Nonces, PagePool

_BY_ARRIVAL = attrgetter("order")


@dataclass(frozen=True)
class SchedulerLimits:
    """What one step may hold."""

    max_num_seqs: int
    """Requests that run at once."""
    tokens_per_step: int
    """New tokens of all rows together; bounds the time of a step. At least `max_num_seqs`."""

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.tokens_per_step < self.max_num_seqs:
            raise ValueError(
                f"tokens_per_step ({self.tokens_per_step}) must be at least max_num_seqs ({self.max_num_seqs}) "
                "and that at least 1: every running request gets a token in every step"
            )


@dataclass(frozen=True)
class ScheduledRow:
    """One row of the next step: `count` tokens of `request` from its token `start`."""

    request: EngineRequest
    start: int
    count: int
    samples: bool
    """Whether the step ends with a new token for this row: it runs the last known one."""

    @property
    def end(self) -> int:
        """Tokens of the request in the cache after the step."""
        return self.start + self.count


@dataclass(frozen=True)
class Schedule:
    """The next step. `impossible` are requests that can never run because too many pages are set aside."""

    rows: tuple[ScheduledRow, ...]
    preempted: tuple[EngineRequest, ...]
    impossible: tuple[EngineRequest, ...]


@dataclass
class _Draft:
    """A schedule in the making."""

    budget: int
    """Tokens that the step may still take."""
    rows: dict[str, ScheduledRow] = field(default_factory=dict)
    preempted: list[EngineRequest] = field(default_factory=list)
    impossible: list[EngineRequest] = field(default_factory=list)


class Scheduler:
    """Waiting and running requests over one page pool."""

    def __init__(self, limits: SchedulerLimits, pool: PagePool, nonces: Nonces) -> None:
        self.limits = limits
        self.pool = pool
        self._nonces = nonces
        self._free_slots = list(reversed(range(limits.max_num_seqs)))
        self.waiting: list[EngineRequest] = []
        self.running: list[EngineRequest] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to schedule."""
        return not self.waiting and not self.running

    def holdings(self) -> Iterator[Holding]:
        """What running requests hold, for the pool's audit."""
        return (request.holding for request in self.running if request.holding is not None)

    def submit(self, request: EngineRequest) -> None:
        """Put a request in line, by its arrival."""
        insort(self.waiting, request, key=_BY_ARRIVAL)

    def remove(self, request: EngineRequest, *, set_aside: bool = False) -> None:
        """Forget a finished, failed or cancelled request; its pages are free for the next step, or set aside."""
        if request in self.running:
            self._stop(request, set_aside=set_aside)
        else:
            self.waiting.remove(request)

    def restart(self, request: EngineRequest, *, set_aside: bool = False) -> None:
        """Take a running request's pages and put it back in line at its old place, to be recomputed."""
        self._stop(request, set_aside=set_aside)
        self.submit(request)

    def schedule(self) -> Schedule:
        """Choose the rows of the next step and allocate their pages."""
        draft = _Draft(self.limits.tokens_per_step)
        for request in self._decoding_first():
            if request.holding is None or not draft.budget:
                continue  # preempted a moment ago to make room for an older one, or a prompt that has to wait
            count = min(request.pending, draft.budget)
            if self._make_room(request, request.computed + count, draft):
                self._put(request, count, draft)
        if not draft.preempted:
            self._admit(draft)
        return Schedule(tuple(draft.rows.values()), tuple(draft.preempted), tuple(draft.impossible))

    def _decoding_first(self) -> list[EngineRequest]:
        """Running requests in arrival order, those with one token to run before those with a prompt."""
        return sorted(self.running, key=lambda request: (request.pending > 1, request.order))

    def _put(self, request: EngineRequest, count: int, draft: _Draft) -> None:
        assert request.holding is not None
        self.pool.extend(request.holding, request.computed + count)
        draft.rows[request.id] = ScheduledRow(request, request.computed, count, samples=count == request.pending)
        draft.budget -= count

    def _make_room(self, request: EngineRequest, tokens: int, draft: _Draft) -> bool:
        """Free pages until `request` can hold `tokens`, newest request first; False when it lost its own."""
        assert request.holding is not None
        while self.pool.missing_pages(request.holding, tokens) > self.pool.free_pages:
            newest = self.running[-1]
            if len(self.running) == 1:
                self._stop(request)
                draft.impossible.append(request)
                return False
            row = draft.rows.pop(newest.id, None)
            draft.budget += 0 if row is None else row.count
            self.restart(newest)
            draft.preempted.append(newest)
            if newest is request:
                return False
        return True

    def _admit(self, draft: _Draft) -> None:
        """Start waiting requests in order while slots, tokens and pages for all their known tokens are there."""
        promised = sum(self._pages_to_come(request) for request in self.running)
        while self.waiting and self._free_slots and draft.budget:
            request = self.waiting[0]
            needed = self.pool.pages_for(len(request.tokens))
            if needed > self.pool.usable_pages:
                draft.impossible.append(self.waiting.pop(0))
                continue
            if needed > self.pool.free_pages - promised:
                return
            self._start(self.waiting.pop(0))
            self._put(request, min(request.pending, draft.budget), draft)
            promised += self._pages_to_come(request)

    def _pages_to_come(self, request: EngineRequest) -> int:
        assert request.holding is not None
        return self.pool.missing_pages(request.holding, len(request.tokens))

    def _start(self, request: EngineRequest) -> None:
        request.holding = Holding(self._nonces.take())
        request.slot = self._free_slots.pop()
        request.computed = 0
        insort(self.running, request, key=_BY_ARRIVAL)

    def _stop(self, request: EngineRequest, *, set_aside: bool = False) -> None:
        assert request.holding is not None
        assert request.slot is not None
        if set_aside:
            self.pool.set_aside(request.holding)
        else:
            self.pool.release(request.holding)
        self._free_slots.append(request.slot)
        request.holding = None
        request.slot = None
        request.computed = 0
        self.running.remove(request)
