"""PageDigests: a sample of full pages is read again now and then, to see whether they still hold what they held.

A full page does not change as long as its tag does not. Now and then a step looks at a few (page, layer): one that was
looked at before is compared, any other is remembered. Steps take turns: one remembers a page of a running request,
drawn at random, the next compares the one that was not looked at for the longest time, while a request holds it or the
prefix cache keeps it. What this finds is a chance, not a promise: it is for what no check of ownership can see (a
flipped bit, a store past all checks), and it finds it late.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob
from octavo_runtime.engine.schedule import ScheduledRow

REMEMBERED = 4096
"""Digests kept at most; beyond it the one that was not looked at for the longest time is forgotten."""


@dataclass(frozen=True)
class _Place:
    """A page of one life, in one layer."""

    page: int
    tag: int
    layer: int


class PageDigests:
    """Draws at most `pages_per_step` pages for every `interval`-th step and compares what comes back."""

    def __init__(self, pages_per_step: int, layers: int, page_size: int, seed: int = 0, *, interval: int = 1) -> None:
        self.pages_per_step = pages_per_step
        self._interval = interval
        self._steps = 0
        self.compared = 0
        """Digests compared since start."""
        self._layers = layers
        self._page_size = page_size
        self._random = random.Random(seed)  # noqa: S311 - which page is no secret
        self._known: OrderedDict[_Place, int] = OrderedDict()
        self._asked: list[_Place] = []
        self._compare_next = False

    def job(self, rows: Sequence[ScheduledRow], is_readable: Callable[[int, int], bool]) -> DigestJob:
        """What to digest in a step of these rows; `took` wants the answer.

        `is_readable` tells whether a pair (page, tag) is still held by a request or kept by the prefix cache.
        """
        self._asked = []
        self._steps += 1
        if not rows or self._steps % self._interval:
            return NO_DIGESTS
        for _ in range(self.pages_per_step):
            self._compare_next = not self._compare_next
            place = (self._oldest(is_readable) if not self._compare_next else None) or self._draw(rows)
            if place is not None and place not in self._asked:
                self._asked.append(place)
        if not self._asked:
            return NO_DIGESTS
        pages = np.array([place.page for place in self._asked], np.int64)
        return DigestJob(pages, tuple(place.layer for place in self._asked))

    def took(self, digests: Sequence[int]) -> list[int]:
        """Compare or remember the digests of the last job; the pages that have changed, each of them forgotten."""
        changed: list[int] = []
        for place, digest in zip(self._asked, digests, strict=True):
            known = self._known.pop(place, None)
            self.compared += known is not None
            if known is not None and known != digest:
                changed.append(place.page)
                continue
            self._known[place] = digest
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return changed

    def _oldest(self, is_readable: Callable[[int, int], bool]) -> _Place | None:
        """The known page that was not looked at for the longest time; those whose life is over are forgotten."""
        while self._known:
            place = next(iter(self._known))
            if is_readable(place.page, place.tag):
                self._known.move_to_end(place)
                return place
            del self._known[place]
        return None

    def _draw(self, rows: Sequence[ScheduledRow]) -> _Place | None:
        request = self._random.choice(rows).request
        full = request.computed // self._page_size
        if request.holding is None or not full:
            return None
        logical = self._random.randrange(full)
        layer = self._random.randrange(self._layers)
        return _Place(request.holding.pages[logical], request.holding.tags[logical], layer)
