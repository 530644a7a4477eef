"""Scheduler: which requests run in the next step, and how many tokens of each.

Pure bookkeeping: no device, no clock, no I/O. There is one total order, by rank: virtual deadline (arrival + priority *
PRIORITY_SECONDS), then arrival number.

- `waiting` and `running` are both kept in that order. Only the head of `waiting` may start, and only when there are
  pages for all of its known tokens besides those that were promised to running requests in the same way.
- Each step spends at most `tokens_per_step` tokens. Decoding requests come first with one token each, then prompts in
  order take what is left, cut into chunks; so a long prompt never stops others from decoding.
- When pages run out, prefixes that nobody uses are evicted first (by the KV manager); then the running request that
  ranks last loses its pages and starts again later from its own tokens.
- A fork waits at the head of the line until the answer it forks from has its prompt in the cache. That answer ranks
  before it and takes what the running ones leave of each step, so nobody behind it could start meanwhile either: it
  costs others at most what is left of the one step with the prompt's last chunk.

No starvation. Requests that rank before r have arrived at most PRIORITY_SECONDS * (10 + r's priority) seconds after r
(priorities are -10 to 10). Let T be the step in which the last of them arrives, S those of them that have not ended
then, with r, and B the requests that run in T. r has ended after at most tokens(S) + tokens(B) further steps, where
tokens() counts prompts and answers. If all priorities are equal, tokens(S) steps suffice.

Proof. Let h be the first of S in order; whoever ranks before r and has not ended is in S. (1) While h waits, nobody
starts. The first running request is never preempted (only the last one is, for another's sake) and gets a token in
each step (there are at most max_num_seqs <= tokens_per_step running, and it comes first among those that decode and
among those that do not). It has run since T: had it started later, h would have been in line before it. So each such
step uses up a token of B, or of a request that is never run again before h. When nobody runs any more, every page but
those set aside can be had, and h starts. (2) Once h runs it is the first running request, so by the same argument each
step uses up one of its tokens for good. When it has ended, the next of S is h. With equal priorities (1) does not
occur: h was in line before all who run. A request that is recomputed after a violation counts its tokens twice.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.engine.schedule import Schedule, ScheduleDraft, SchedulerLimits
from octavo_runtime.kv.holding import Holding
from octavo_runtime.kv.manager import KvManager, Match
from octavo_runtime.kv.pool import OutOfPages
from octavo_runtime.kv.prefix import PrefixKey

_BY_RANK = attrgetter("rank")


@dataclass(frozen=True)
class _Origin:
    """What a request can start from, and how many pages it needs besides."""

    pages: int
    """Pages that stop being available when it starts and has all its known tokens."""
    match: Match
    parent: Holding | None
    """Fork from this one instead of starting from the match."""


class Scheduler:
    """Waiting and running requests over one KV manager."""

    def __init__(self, limits: SchedulerLimits, kv: KvManager) -> None:
        self.limits = limits
        self.kv = kv
        self.waiting: list[EngineRequest] = []
        self.running: list[EngineRequest] = []
        self.slots: list[EngineRequest | None] = [None] * limits.max_num_seqs
        """Running requests by row of the block table; a request takes the lowest free one."""
        self.waiting_tokens = 0
        """Known tokens of all waiting requests."""
        self._free_slots = list(range(limits.max_num_seqs))
        self._page_size = kv.page_size
        self._refused: tuple[EngineRequest, int] | None = None
        """Who could not start last time, and for how few pages."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to schedule."""
        return not self.waiting and not self.running

    def holdings(self) -> Iterator[Holding]:
        """What running requests hold, for the audit."""
        return (request.holding for request in self.running if request.holding is not None)

    def holders_of(self, page: int) -> list[EngineRequest]:
        """Running requests that hold `page`; looks through everything that is held."""
        return [request for request in self.running if request.holding is not None and page in request.holding.pages]

    def submit(self, request: EngineRequest) -> None:
        """Put a request in line, at its rank."""
        if request.chain is None:
            request.chain = self.kv.chain(request.tokens, PrefixKey(adapter="", salt=request.cache_salt))
        insort(self.waiting, request, key=_BY_RANK)
        self.waiting_tokens += len(request.tokens)

    def remove(self, request: EngineRequest, *, set_aside: bool = False) -> None:
        """Forget a finished, failed or cancelled request; its pages are free for the next step, or set aside."""
        if request.holding is not None:
            self._stop(request, set_aside=set_aside)
        else:
            self.waiting.remove(request)
            self.waiting_tokens -= len(request.tokens)

    def restart(self, request: EngineRequest, *, set_aside: bool = False) -> None:
        """Take a running request's pages and put it back in line at its old place, to be recomputed."""
        self._stop(request, set_aside=set_aside)
        self.submit(request)

    def schedule(self) -> Schedule:
        """Choose the rows of the next step and allocate their pages."""
        draft = ScheduleDraft(self.limits.tokens_per_step)
        for request in self._decoding_first():
            if request.holding is None or not draft.budget:
                continue  # preempted a moment ago to make room for an older one, or a prompt that has to wait
            self._put(request, draft)
        if not draft.preempted:
            self._admit(draft)
        return draft.finished()

    def _decoding_first(self) -> list[EngineRequest]:
        """Running requests in order, those with one token to run before those with a prompt."""
        return sorted(self.running, key=lambda request: request.pending > 1)

    def _put(self, request: EngineRequest, draft: ScheduleDraft) -> None:
        """Let `request` run what the budget allows, unless it loses its own pages for want of room."""
        count = min(request.pending, draft.budget)
        if self._make_room(request, request.computed + count, draft):
            draft.put(request, count)

    def _make_room(self, request: EngineRequest, tokens: int, draft: ScheduleDraft) -> bool:
        """Give `request` pages for `tokens`, preempting others from the last on; False when it came to itself."""
        assert request.holding is not None
        if tokens <= len(request.holding.pages) * self._page_size:
            return True
        while True:
            try:
                self.kv.extend(request.holding, tokens)
                return True
            except OutOfPages:
                last = self.running[-1]
                if len(self.running) == 1:
                    self._stop(request)
                    draft.impossible.append(request)
                    return False
                self.restart(last)
                draft.drop(last)
                if last is request:
                    return False

    def _admit(self, draft: ScheduleDraft) -> None:
        """Start waiting requests in order while slots, tokens and pages for all their known tokens are there."""
        if not self.waiting:
            return
        promised = sum(self._pages_to_come(request) for request in self.running)
        while self.waiting and self._free_slots and draft.budget:
            request = self.waiting[0]
            if self.kv.pages_for(len(request.tokens)) > self.kv.usable_pages:
                self.remove(request)
                draft.impossible.append(request)
                continue
            room = self.kv.available_pages - promised
            if self._refused is not None and self._refused[0] is request and room <= self._refused[1]:
                return  # looking its prefix up in every step of a long wait would cost as much as its prompt is long
            origin = self._origin(request)
            if origin is None:
                return
            if origin.pages > room and not self.running:
                self.remove(request)  # pages are held by nobody and cannot be had: waiting would last for ever
                draft.impossible.append(request)
                continue
            if origin.pages > room:
                self._refused = request, room
                return
            try:
                self._start(request, origin)
            except OutOfPages:
                return  # pages that were not free have left the free list
            self._put(request, draft)
            if draft.preempted or request.holding is None:
                return
            promised += self._pages_to_come(request)

    def _origin(self, request: EngineRequest) -> _Origin | None:
        """The longest start there is: a cached prefix, or the prompt of the answer it forks from; None to wait."""
        assert request.chain is not None
        needed = self.kv.pages_for(len(request.tokens))
        match = self.kv.match(request.chain, len(request.tokens))
        parent, common = request.parent, request.prompt_len - 1
        if parent is None or parent.holding is None or match.tokens >= common:
            return _Origin(needed - len(match.pairs) + match.idle, match, None)
        if parent.computed < common:
            return None
        if not self.kv.can_fork(parent.holding, common):  # a violation that is about to be found
            return _Origin(needed - len(match.pairs) + match.idle, match, None)
        return _Origin(needed - common // self._page_size, match, parent.holding)

    def _pages_to_come(self, request: EngineRequest) -> int:
        assert request.holding is not None
        return self.kv.missing_pages(request.holding, len(request.tokens))

    def _start(self, request: EngineRequest, origin: _Origin) -> None:
        assert request.chain is not None
        if origin.parent is None:
            request.holding = self.kv.start(origin.match)
        else:
            request.holding = self.kv.fork(origin.parent, request.chain, request.prompt_len - 1)
        self.waiting.pop(0)
        self.waiting_tokens -= len(request.tokens)
        request.computed = request.holding.cached_tokens
        request.slot = heapq.heappop(self._free_slots)
        self.slots[request.slot] = request
        insort(self.running, request, key=_BY_RANK)

    def _stop(self, request: EngineRequest, *, set_aside: bool = False) -> None:
        assert request.holding is not None
        assert request.slot is not None
        if set_aside:
            self.kv.set_aside(request.holding)
        else:
            self.kv.release(request.holding)
        heapq.heappush(self._free_slots, request.slot)
        self.slots[request.slot] = None
        request.holding = None
        request.slot = None
        request.computed = 0
        self.running.remove(request)
