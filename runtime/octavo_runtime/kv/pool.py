"""PagePool: who owns which page of the KV cache, and the generation tags that make a stale page id worthless.

The pool is the host's view and knows no device. Every change of a page is collected and handed to the executor by
`take_updates()`, which writes it to the device records *before* the step that relies on it, in order.

    page 0        NULL page: tag 0, refs 0, never allocated, never written; padding and clamped ids point at it

                      extend: tag += 1 (even)                     release of the last reference: tag += 1 (odd)
      free list  ------------------------------>  live pages  ------------------------------>  tail of the free list
      oldest first                                refs >= 1
      tag odd, refs 0                             writer = nonce of one request
      writer NULL                                      |
                                                       |  set_aside: tag += 1 (odd), refs 0, writer NULL
                                                       v
                                                  set aside: never reused while this process lives

A request owns nothing but (page, tag) pairs: its `Holding`. A pair is a right to read only while the page's tag still
equals it, so a pair kept too long matches neither the freed page (odd) nor the page's next life (a later even tag).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo_kernels.formats.binding import add, mix
from octavo_kernels.formats.place import place_of

NULL_PAGE = 0
WRITER_NULL = 0
"""No request may write: free pages and the NULL page."""
WRITER_SHARED = -1
"""Read-only: the page is in the prefix cache or shared by forks."""

FIRST_FREE_TAG = 1
_U32 = 1 << 32


class OutOfPages(Exception):
    """The free list is shorter than what was asked for; nothing was taken."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed} KV pages needed, {free} free")
        self.needed = needed
        self.free = free


class PoolCorrupt(Exception):
    """The pool's own books contradict each other or a holding: a defect, after which no page can be trusted."""


@dataclass
class Holding:
    """What one request holds: pairs in logical order and their running binding.

    `binding` is the int64 sum (wrapping) of mix(nonce, logical index, page, tag) over all pairs.
    """

    nonce: int
    """u32 writer nonce, unique among all requests of this process; never 0 or 2**32 - 1."""
    pages: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    binding: int = 0

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(page, tag) in logical order."""
        return zip(self.pages, self.tags, strict=True)


@dataclass(frozen=True)
class RecordUpdates:
    """New values for the device's page records: int32 arrays of equal length, u32 as bit patterns."""

    pages: npt.NDArray[np.int32]
    tags: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    writers: npt.NDArray[np.int32]

    @property
    def empty(self) -> bool:
        """Whether no page changed."""
        return len(self.pages) == 0


class PagePool:
    """Allocation, reference counts, tags and writers of `num_pages` pages of `page_size` tokens, page 0 reserved."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 2 or page_size < 1:
            raise ValueError(f"a pool needs the NULL page and one more, got {num_pages} pages of {page_size} tokens")
        self.num_pages = num_pages
        self.page_size = page_size
        self._tag = [0] + [FIRST_FREE_TAG] * (num_pages - 1)
        self._logical = [0] * num_pages
        self._writer = [WRITER_NULL] * num_pages
        self._fill = [0] * num_pages
        self._refs = [0] * num_pages
        self._free = deque(range(1, num_pages))
        self._condemned: set[int] = set()
        self._set_aside: set[int] = set()
        self._changed: dict[int, None] = {}

    @property
    def free_pages(self) -> int:
        """Pages that can be allocated now."""
        return len(self._free)

    @property
    def usable_pages(self) -> int:
        """Pages that requests can hold at most: all but the NULL page and those set aside."""
        return self.num_pages - 1 - len(self._set_aside)

    @property
    def set_aside_pages(self) -> int:
        """Pages that are never reused because a violation touched them."""
        return len(self._set_aside)

    @property
    def used_pages(self) -> int:
        """Pages that requests reference."""
        return self.usable_pages - len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def missing_pages(self, holding: Holding, tokens: int) -> int:
        """Pages that `holding` lacks to have room for `tokens` tokens."""
        return max(0, self.pages_for(tokens) - len(holding.pages))

    def extend(self, holding: Holding, tokens: int) -> None:
        """Give `holding` room for `tokens` tokens in all; raises OutOfPages and takes nothing when it cannot."""
        needed = self.missing_pages(holding, tokens)
        if needed > len(self._free):
            raise OutOfPages(needed, len(self._free))
        for _ in range(needed):
            page = self._free.popleft()
            logical = len(holding.pages)
            tag = self._next_tag(page)
            self._logical[page] = logical
            self._writer[page] = holding.nonce
            self._fill[page] = 0
            self._refs[page] = 1
            holding.pages.append(page)
            holding.tags.append(tag)
            holding.binding = add(holding.binding, mix(holding.nonce, logical, page, tag))

    def filled(self, holding: Holding, start: int, end: int) -> None:
        """Note that tokens `start` to `end` (exclusive) of `holding` are in the cache, as the device's fill marks."""
        for logical in range(start // self.page_size, self.pages_for(end)):
            self._fill[holding.pages[logical]] = min(end - logical * self.page_size, self.page_size)

    def retain(self, page: int, tag: int) -> None:
        """Add a reference to a live page; raises PoolCorrupt for a pair that is no longer a right."""
        self._require_live(page, tag)
        self._refs[page] += 1

    def release(self, holding: Holding) -> None:
        """Give up all pairs of `holding`; pages without a reference go to the tail of the free list."""
        for page, tag in holding.pairs():
            self._drop(page, tag)
        _clear(holding)

    def set_aside(self, holding: Holding) -> None:
        """Give up all pairs of `holding`; once no request references their pages they are never handed out again."""
        self._condemned.update(holding.pages)
        self.release(holding)

    def take_updates(self) -> RecordUpdates:
        """Records of all pages changed since the last call, for the device to write before the next step."""
        changed = list(self._changed)
        self._changed.clear()
        return self._records_of(changed)

    def records(self) -> RecordUpdates:
        """The host's view of every page, to compare the device's records with."""
        return self._records_of(range(self.num_pages))

    def _records_of(self, pages: Sequence[int]) -> RecordUpdates:
        return RecordUpdates(
            pages=np.array(pages, dtype=np.int32),
            tags=_bits([self._tag[page] for page in pages]),
            places=np.array([place_of(self._logical[page], self._fill[page]) for page in pages], dtype=np.int32),
            writers=_bits([self._writer[page] for page in pages]),
        )

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
                if self._logical[page] != logical:
                    raise PoolCorrupt(f"page {page} has logical index {self._logical[page]}, held as {logical}")
            if binding != holding.binding:
                raise PoolCorrupt(f"binding of nonce {holding.nonce:#x} is {holding.binding}, its pairs give {binding}")
        self._audit_pages(references)

    def _audit_pages(self, references: list[int]) -> None:
        free = set(self._free)
        if len(free) != len(self._free):
            raise PoolCorrupt("a page is in the free list twice")
        if NULL_PAGE in free or self._tag[NULL_PAGE] != 0 or self._refs[NULL_PAGE] != 0:
            raise PoolCorrupt("the NULL page was allocated or freed")
        for page in range(1, self.num_pages):
            if self._refs[page] != references[page]:
                raise PoolCorrupt(f"page {page} counts {self._refs[page]} references, {references[page]} exist")
            homes = (page in free) + (page in self._set_aside) + (self._refs[page] > 0)
            if homes != 1:
                raise PoolCorrupt(f"page {page} is in {homes} of free list, set aside and live")
            if (self._tag[page] % 2 == 0) != (self._refs[page] > 0):
                raise PoolCorrupt(f"page {page} has tag {self._tag[page]} with {self._refs[page]} references")

    def _next_tag(self, page: int) -> int:
        """Bump the page's tag; past 2**32 - 1 it goes on at 2, because (page, 0) means nothing and 1 means new."""
        tag = self._tag[page] + 1
        self._tag[page] = tag if tag < _U32 else 2
        self._changed[page] = None
        return self._tag[page]

    def _require_live(self, page: int, tag: int) -> None:
        if not 0 < page < self.num_pages or self._tag[page] != tag or self._refs[page] < 1:
            raise PoolCorrupt(f"pair (page {page}, tag {tag}) is held but no longer valid")

    def _drop(self, page: int, tag: int) -> None:
        """Take one reference away; the last one retires the page."""
        self._require_live(page, tag)
        self._refs[page] -= 1
        if self._refs[page]:
            return
        self._next_tag(page)
        self._logical[page] = 0
        self._writer[page] = WRITER_NULL
        self._fill[page] = 0
        if page in self._condemned:
            self._condemned.remove(page)
            self._set_aside.add(page)
        else:
            self._free.append(page)


def _clear(holding: Holding) -> None:
    holding.pages.clear()
    holding.tags.clear()
    holding.binding = 0


def _bits(values: list[int]) -> npt.NDArray[np.int32]:
    """u32 values (or -1) as int32 bit patterns."""
    return np.array(values, dtype=np.int64).astype(np.uint32).view(np.int32)


class Nonces:
    """Writer nonces: u32 values that do not repeat within 2**32 requests, none of them WRITER_NULL or WRITER_SHARED.

    Counting in steps of an odd constant visits every u32 once; consecutive nonces differ in many bits.
    """

    _STRIDE = 0x9E3779B1

    def __init__(self, seed: int) -> None:
        self._next = seed % _U32

    def take(self) -> int:
        """The next nonce."""
        while True:
            self._next = (self._next + self._STRIDE) % _U32
            if self._next not in {WRITER_NULL, WRITER_SHARED % _U32}:
                return self._next
