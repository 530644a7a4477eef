"""PagePool: who owns which page of the KV cache, and the generation tags that make a stale page id worthless.

The pool is the host's view and knows no device. Every change of a page is collected and handed to the executor by
`take_updates()`, which writes it to the device records *before* the step that relies on it, in order.

    page 0        NULL page: tag 0, refs 0, never allocated, never written; padding and clamped ids point at it

                    extend: tag += 1 (even)                  release of the last reference: tag += 1 (odd)
      free list  --------------------------->  live pages  --------------------------->  tail of the free list
      oldest first                             refs >= 1                                        ^
      tag odd, refs 0                          writer = nonce of one request,                   | discard:
      writer NULL                              SHARED after keep() or share()                   | tag += 1
                                                   |   ^   |  last release of a kept page       |
                                                   |   |   +------------------------------>  retained
                                                   |   +---------- adopt: refs + 1 --------  tag even, refs 0
                                                   |  set_aside: tag += 1 (odd), refs 0, writer NULL
                                                   v
                                               set aside: never reused while this process lives

A request owns nothing but (page, tag) pairs: its `Holding`. A pair is a right to read only while the page's tag still
equals it, so a pair kept too long matches neither the freed page (odd) nor the page's next life (a later even tag).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from octavo_kernels.formats.binding import add, mix
from octavo_kernels.formats.place import place_of
from octavo_runtime.kv.holding import Holding, Nonces
from octavo_runtime.kv.pages import (
    NULL_PAGE,
    WRITER_NULL,
    WRITER_SHARED,
    Home,
    HostFinding,
    HostReason,
    PageBook,
)
from octavo_runtime.kv.updates import RecordUpdates

__all__ = [
    "NULL_PAGE",
    "WRITER_NULL",
    "WRITER_SHARED",
    "Holding",
    "Nonces",
    "OutOfPages",
    "PagePool",
    "PoolCorrupt",
    "RecordUpdates",
]


class OutOfPages(Exception):
    """Fewer pages can be had than what was asked for; nothing was taken."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed} KV pages needed, {free} free")
        self.needed = needed
        self.free = free


class PoolCorrupt(Exception):
    """The pool's own books contradict each other or a holding: a defect, after which no page can be trusted."""


class PagePool:
    """Allocation, reference counts, tags and writers of `num_pages` pages of `page_size` tokens, page 0 reserved."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 2 or page_size < 1:
            raise ValueError(f"a pool needs the NULL page and one more, got {num_pages} pages of {page_size} tokens")
        self.num_pages = num_pages
        self.page_size = page_size
        self.book = PageBook(num_pages, page_size)
        self._free = deque(range(1, num_pages))
        self._condemned: set[int] = set()
        self._changed: dict[int, None] = {}
        """Pages whose records the device does not know yet, in order of change."""
        self._unchecked: dict[int, None] = {}
        self._findings: list[HostFinding] = []

    @property
    def free_pages(self) -> int:
        """Pages that can be allocated now."""
        return len(self._free)

    @property
    def retained_pages(self) -> int:
        """Pages that only the prefix cache keeps."""
        return self.book.count(Home.RETAINED)

    @property
    def usable_pages(self) -> int:
        """Pages that requests can hold at most: all but the NULL page and those set aside."""
        return self.num_pages - 1 - self.set_aside_pages

    @property
    def set_aside_pages(self) -> int:
        """Pages that are never reused because a violation touched them."""
        return self.book.count(Home.SET_ASIDE)

    @property
    def used_pages(self) -> int:
        """Pages that requests reference."""
        return self.book.count(Home.LIVE)

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def missing_pages(self, holding: Holding, tokens: int) -> int:
        """Pages that `holding` lacks to have room for `tokens` tokens."""
        return max(0, self.pages_for(tokens) - len(holding.pages))

    def extend(self, holding: Holding, tokens: int) -> None:
        """Give `holding` room for `tokens` tokens in all; raises OutOfPages and takes nothing when it cannot."""
        needed, book = self.missing_pages(holding, tokens), self.book
        pages = self._take(needed)
        if len(pages) < needed:
            self._free.extendleft(reversed(pages))
            raise OutOfPages(needed, len(pages))
        for page in pages:
            book.move(page, Home.LIVE)
            book.logical[page], book.writer[page], book.fill[page] = len(holding.pages), holding.nonce, 0
            book.refs[page] = 1
            holding.append(page, book.next_tag(page))
            self._note(page)

    def filled(self, holding: Holding, start: int, end: int) -> None:
        """Note that tokens `start` to `end` (exclusive) of `holding` are in the cache, as the device's fill marks.

        A page that is no longer the holding's own is left as it is and found.
        """
        for logical in range(start // self.page_size, self.pages_for(end)):
            page, tag = holding.pages[logical], holding.tags[logical]
            if self.book.is_right(page, tag) and self.book.writer[page] == holding.nonce:
                self.book.fill[page] = min(end - logical * self.page_size, self.page_size)
            else:
                self._find(page, HostReason.PAIR)

    def adopt(self, holding: Holding, pairs: Sequence[tuple[int, int]]) -> None:
        """Let `holding`, which is empty, read live or retained pages; raises PoolCorrupt and takes nothing for a pair
        that is no right any more."""
        book = self.book
        for page, tag in pairs:
            if not book.is_readable(page, tag):
                self._require_live(page, tag)
        for page, tag in pairs:
            if book.home[page] is Home.RETAINED:
                book.move(page, Home.LIVE)
            book.refs[page] += 1
            holding.append(page, tag)
            self._unchecked[page] = None

    def retain(self, page: int, tag: int) -> None:
        """Add a reference to a live page; raises PoolCorrupt for a pair that is no longer a right."""
        self._require_live(page, tag)
        self.book.refs[page] += 1
        self._unchecked[page] = None

    def share(self, page: int, tag: int) -> None:
        """Make a live page read-only; raises PoolCorrupt for a pair that is no longer a right."""
        self._require_live(page, tag)
        if self.book.writer[page] != WRITER_SHARED:
            self.book.writer[page] = WRITER_SHARED
            self._note(page)

    def keep(self, page: int, tag: int) -> None:
        """Make a live page read-only and keep it past its last reference, until `discard`."""
        self.share(page, tag)
        self.book.kept[page] = True
        self._unchecked[page] = None

    def discard(self, page: int, tag: int) -> None:
        """Keep the page no longer; when no request references it either, it is free (or set aside, if condemned).

        A pair that has changed since is left alone: it keeps nothing.
        """
        if not self.book.is_readable(page, tag):
            return
        self.book.kept[page] = False
        self._unchecked[page] = None
        if self.book.home[page] is Home.RETAINED:
            self._retire(page)

    def condemn(self, pages: Iterable[int]) -> None:
        """Never hand these pages out again once nobody references or keeps them; those that are neither live nor
        retained, or not in the pool, are left alone."""
        home, known = self.book.home, range(self.num_pages)
        self._condemned.update(page for page in pages if page in known and home[page] in {Home.LIVE, Home.RETAINED})

    def holds_condemned(self, holding: Holding) -> bool:
        """Whether a page of `holding` is condemned: nothing when none is, a pass over its pages otherwise."""
        return bool(self._condemned) and not self._condemned.isdisjoint(holding.pages)

    def release(self, holding: Holding, *, lenient: bool = False) -> list[int]:
        """Give up all pairs of `holding`; pages without a reference go to the tail of the free list, or are retained:
        those are returned. A pair that is no right any more raises PoolCorrupt, or if `lenient` is left alone."""
        retained = []
        for page, tag in holding.pairs():
            if lenient and not self.book.is_right(page, tag):
                continue
            self._drop(page, tag)
            if self.book.home[page] is Home.RETAINED:
                retained.append(page)
        holding.clear()
        return retained

    def set_aside(self, holding: Holding, *, lenient: bool = False) -> None:
        """Give up all pairs of `holding`; once nobody references or keeps their pages they are never handed out
        again. `lenient` as in `release`."""
        self.condemn(page for page, tag in holding.pairs() if self.book.is_right(page, tag))
        self.release(holding, lenient=lenient)

    def take_updates(self) -> RecordUpdates:
        """Records of all pages changed since the last call, for the device to write before the next step."""
        changed = list(self._changed)
        self._changed.clear()
        return self._records_of(changed)

    def records(self) -> RecordUpdates:
        """The host's view of every page, to compare the device's records with."""
        return self._records_of(range(self.num_pages))

    def _records_of(self, pages: Sequence[int]) -> RecordUpdates:
        book = self.book
        return RecordUpdates(
            pages=np.array(pages, dtype=np.int32),
            tags=_bits([book.tag[page] for page in pages]),
            places=np.array([place_of(book.logical[page], book.fill[page]) for page in pages], dtype=np.int32),
            writers=_bits([book.writer[page] for page in pages]),
        )

    @property
    def has_findings(self) -> bool:
        """Whether `take_findings` would give any."""
        return bool(self._findings)

    def take_findings(self) -> list[HostFinding]:
        """What was found in passing since the last call."""
        findings, self._findings = self._findings, []
        return findings

    def check_changed(self) -> list[HostFinding]:
        """Pages changed since the last call whose facts contradict each other, and pages that stand in the free list
        without being free (those leave it). O(changed pages) while the free list has its right length."""
        findings = []
        for page in (NULL_PAGE, *self._unchecked):
            reason = self.book.contradiction(page)
            if reason is not None:
                findings.append(HostFinding(page, reason))
        self._unchecked.clear()
        if len(self._free) != self.book.count(Home.FREE):
            findings.extend(self._weed_free_list())
        return findings

    def check_integrity(self, holdings: Iterable[Holding]) -> None:
        """Full audit against everything that is held: conservation, reference counts, parity, bindings.

        Raises PoolCorrupt naming the first contradiction. Costs a pass over all pages: for idle moments and tests.
        """
        references = [0] * self.num_pages
        for holding in holdings:
            binding = 0
            for logical, (page, tag) in enumerate(holding.pairs()):
                self._require_live(page, tag)
                references[page] += 1
                binding = add(binding, mix(holding.nonce, logical, page, tag))
                if self.book.logical[page] != logical:
                    raise PoolCorrupt(f"page {page} has logical index {self.book.logical[page]}, held as {logical}")
            if binding != holding.binding:
                raise PoolCorrupt(f"binding of nonce {holding.nonce:#x} is {holding.binding}, its pairs give {binding}")
        self._audit_pages(references)

    def _audit_pages(self, references: list[int]) -> None:
        free, book = set(self._free), self.book
        if len(free) != len(self._free):
            raise PoolCorrupt("a page is in the free list twice")
        for page in range(self.num_pages):
            reason = book.contradiction(page)
            if reason is not None:
                raise PoolCorrupt(f"page {page} ({book.home[page].name}) contradicts itself: {reason}")
            if book.refs[page] != references[page]:
                raise PoolCorrupt(f"page {page} counts {book.refs[page]} references, {references[page]} exist")
            if (page in free) != (book.home[page] is Home.FREE):
                raise PoolCorrupt(f"page {page} is {book.home[page].name} and {'' if page in free else 'not '}free")

    def _take(self, needed: int) -> list[int]:
        """Up to `needed` pages from the head of the free list; what is not free there is found and left out."""
        pages: dict[int, None] = {}
        while self._free and len(pages) < needed:
            page = self._free.popleft()
            if self.book.home[page] is not Home.FREE or page in pages:
                self._find(page, HostReason.HOME)
            elif (reason := self.book.contradiction(page)) is not None:
                self._find(page, reason)
                self._bury(page)
            else:
                pages[page] = None
        return list(pages)

    def _weed_free_list(self) -> list[HostFinding]:
        kept: dict[int, None] = {}
        findings = []
        for page in self._free:
            if self.book.home[page] is Home.FREE and page not in kept:
                kept[page] = None
            else:
                findings.append(HostFinding(page, HostReason.HOME))
        self._free = deque(kept)
        for page in range(self.num_pages):
            if self.book.home[page] is Home.FREE and page not in kept:
                findings.append(HostFinding(page, HostReason.HOME))
                self._bury(page)
        return findings

    def _bury(self, page: int) -> None:
        """Set a page aside whose facts make no sense, and make them agree again."""
        book = self.book
        book.tag[page] |= 1
        book.refs[page], book.kept[page] = 0, False
        book.blank(page)
        book.move(page, Home.SET_ASIDE)
        self._note(page)

    def _note(self, page: int) -> None:
        self._changed[page] = None
        self._unchecked[page] = None

    def _find(self, page: int, reason: HostReason) -> None:
        self._findings.append(HostFinding(page, reason))

    def _require_live(self, page: int, tag: int) -> None:
        if not self.book.is_right(page, tag) or self.book.refs[page] < 1:
            raise PoolCorrupt(f"pair (page {page}, tag {tag}) is held but no longer valid")

    def _drop(self, page: int, tag: int) -> None:
        """Take one reference away; the last one retires the page, unless the prefix cache keeps it."""
        self._require_live(page, tag)
        self.book.refs[page] -= 1
        self._unchecked[page] = None
        if self.book.refs[page]:
            return
        if self.book.kept[page]:
            self.book.move(page, Home.RETAINED)
        else:
            self._retire(page)

    def _retire(self, page: int) -> None:
        self.book.next_tag(page)
        self.book.blank(page)
        self._note(page)
        if page in self._condemned:
            self._condemned.remove(page)
            self.book.move(page, Home.SET_ASIDE)
        else:
            self.book.move(page, Home.FREE)
            self._free.append(page)


def _bits(values: list[int]) -> npt.NDArray[np.int32]:
    """u32 values (or -1) as int32 bit patterns."""
    return np.array(values, dtype=np.int64).astype(np.uint32).view(np.int32)
