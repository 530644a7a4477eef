"""KvManager: all that scheduler and engine know of the KV cache's pages, over the pool and the prefix cache.

    start(match) --> extend --> (step) --> commit --> extend --> ... --> release
       reads          gets        the       fill marks; pages that        pages that the prefix cache keeps
       cached         pages,      device    became full are shared:       are retained, the others are free
       pages          evicts      writes    read-only from then on

Only `commit`, which follows the clean verdict of the step that wrote the tokens, makes a page shareable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo_runtime.kv.holding import Holding, Nonces
from octavo_runtime.kv.pages import Home, HostFinding, HostReason
from octavo_runtime.kv.pool import OutOfPages, PagePool, PoolCorrupt
from octavo_runtime.kv.prefix import Chain, Entry, PrefixCache, PrefixKey
from octavo_runtime.kv.updates import DeviceUpdates, PageCopy


@dataclass(frozen=True)
class Match:
    """The longest cached prefix of a request."""

    pairs: tuple[tuple[int, int], ...] = ()
    """(page, tag) of its pages, in order."""
    tokens: int = 0
    idle: int = 0
    """Pages of it that only the cache keeps: reading them makes them unavailable to others."""
    queried: int = 0
    """Tokens that were looked up."""


@dataclass
class KvCounters:
    """Counts since start."""

    queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    hit_tokens: int = 0
    evicted_pages: int = 0
    forks: int = 0
    pages_copied: int = 0


class KvManager:
    """Pages for requests: from the free list, from the prefix cache, and taken back from it under pressure."""

    def __init__(self, pool: PagePool, nonces: Nonces, prefix: PrefixCache | None) -> None:
        self._pool = pool
        self._nonces = nonces
        self._prefix = prefix
        self._copies: dict[int, PageCopy] = {}
        """Of the next DeviceUpdates, by target."""
        self._findings: list[HostFinding] = []
        self.counters = KvCounters()

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._pool.page_size

    @property
    def num_pages(self) -> int:
        """Pages in all, the NULL page included."""
        return self._pool.num_pages

    @property
    def usable_pages(self) -> int:
        """Pages that requests can hold at most: all but the NULL page and those set aside."""
        return self._pool.usable_pages

    @property
    def free_pages(self) -> int:
        """Pages in the free list."""
        return self._pool.free_pages

    @property
    def available_pages(self) -> int:
        """Pages that requests can get now: free ones and those that only the prefix cache keeps."""
        return self._pool.free_pages + self._pool.retained_pages

    @property
    def used_pages(self) -> int:
        """Pages that requests reference."""
        return self._pool.used_pages

    @property
    def retained_pages(self) -> int:
        """Pages that only the prefix cache keeps."""
        return self._pool.retained_pages

    @property
    def set_aside_pages(self) -> int:
        """Pages that are never reused because a violation touched them."""
        return self._pool.set_aside_pages

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill, the last one perhaps in part."""
        return self._pool.pages_for(tokens)

    def missing_pages(self, holding: Holding, tokens: int) -> int:
        """Pages that `holding` lacks to have room for `tokens` tokens."""
        return self._pool.missing_pages(holding, tokens)

    def is_readable(self, page: int, tag: int) -> bool:
        """Whether a request holds the pair (page, tag) or the prefix cache keeps it: the page's life goes on."""
        return self._pool.book.is_right(page, tag) or self._pool.book.is_readable(page, tag)

    def chain(self, tokens: list[int], key: PrefixKey) -> Chain:
        """The pages of one request's token list, which may grow but never change; hashed when needed."""
        return Chain(tokens, b"", self.page_size) if self._prefix is None else self._prefix.chain(tokens, key)

    def match(self, chain: Chain, tokens: int) -> Match:
        """The longest cached prefix of at most `tokens` - 1 tokens: the last one has to be computed for its logits.

        An entry whose page has another tag or is not full is found, and leaves the cache with all that descend from it.
        """
        if self._prefix is None:
            return Match()
        pairs, idle = [], 0
        for entry in self._prefix.find(chain, max(0, tokens - 1) // self.page_size):
            reason = self._unreadable(entry)
            if reason is not None:
                self._findings.append(HostFinding(entry.page, reason))
                self._forget(entry)
                break
            pairs.append((entry.page, entry.tag))
            idle += entry.idle_since is not None
        return Match(tuple(pairs), len(pairs) * self.page_size, idle, tokens)

    def start(self, match: Match) -> Holding:
        """A new request that reads the matched pages; raises PoolCorrupt when one of them was given up since."""
        holding = Holding(self._nonces.take(), cached_tokens=match.tokens, shared=len(match.pairs))
        self._pool.adopt(holding, match.pairs)
        self._mark_used(holding)
        self.counters.queried_tokens += match.queried
        self.counters.hit_tokens += match.tokens
        return holding

    def extend(self, holding: Holding, tokens: int) -> None:
        """Give `holding` room for `tokens` tokens in all, giving up cached prefixes that nobody uses where needed.

        Raises OutOfPages and takes nothing when even that is not enough.
        """
        while True:
            needed = self.missing_pages(holding, tokens)
            if needed > self.available_pages:
                raise OutOfPages(needed, self.available_pages)
            while self.free_pages < needed:
                if not self._evict():
                    raise OutOfPages(needed, self.free_pages)
            try:
                return self._pool.extend(holding, tokens)
            except OutOfPages:
                continue  # pages that were not free have left the free list: count again

    def commit(self, holding: Holding, chain: Chain, start: int, end: int, *, shareable: bool = True) -> None:
        """Note that tokens `start` to `end` (exclusive) are in the cache, after the clean verdict of their step.

        Pages that became full enter the prefix cache and are read-only from now on; where the same prefix is cached
        already, the own page stays private. `shareable` False is for tokens that are used without a clean verdict: from
        then on nothing of this holding becomes shareable.
        """
        pool = self._pool
        pool.filled(holding, start, end)
        holding.suspect = holding.suspect or not shareable or pool.holds_condemned(holding)
        if self._prefix is None or holding.suspect:
            return
        full = end // self.page_size
        for logical in range(start // self.page_size, full):
            page, tag = holding.pages[logical], holding.tags[logical]
            own = pool.book.is_right(page, tag) and pool.book.writer[page] == holding.nonce
            if own and self._prefix.add(chain, logical, page, tag):
                pool.keep(page, tag)
        while holding.shared < full and pool.book.kept[holding.pages[holding.shared]]:
            holding.shared += 1

    def can_fork(self, parent: Holding, tokens: int) -> bool:
        """Whether the first `tokens` tokens of `parent` are committed, in pages that are still its own."""
        book, needed = self._pool.book, self.pages_for(tokens)
        own = all(book.is_right(page, tag) for page, tag in zip(parent.pages[:needed], parent.tags, strict=False))
        return own and tokens <= sum(book.fill[page] for page in parent.pages[:needed])

    def fork(self, parent: Holding, chain: Chain, tokens: int) -> Holding:
        """A new request that has the first `tokens` tokens of `parent`, which are committed, in the cache.

        Full pages are shared and read-only from now on; a partial one is copied by the next DeviceUpdates. Raises
        ValueError for tokens that are not committed and OutOfPages, which takes nothing.
        """
        full, rest = divmod(tokens, self.page_size)
        self._require_committed(parent, chain, tokens)
        pairs = list(parent.pairs())[:full]
        child = Holding(self._nonces.take(), cached_tokens=tokens, shared=full)
        child.suspect = parent.suspect or self._pool.holds_condemned(parent)
        self._pool.adopt(child, pairs)
        try:
            self.extend(child, tokens)
        except OutOfPages:
            self._pool.release(child)
            raise
        for page, tag in pairs:
            self._pool.share(page, tag)
        parent.shared = max(parent.shared, full)
        if rest:
            self._copy(parent.pages[full], child.pages[full], rest)
            self._pool.filled(child, full * self.page_size, tokens)
        self.counters.forks += 1
        return child

    def release(self, holding: Holding) -> None:
        """Give up all that a request holds. A pair that is no right any more is found and left alone."""
        book = self._pool.book
        for page, tag in holding.pairs():
            if not book.is_right(page, tag):
                self._findings.append(HostFinding(page, HostReason.PAIR))
        self._cancel_copies(holding)
        self._mark_unused(self._pool.release(holding, lenient=True))

    def set_aside(self, holding: Holding, *, lenient: bool = True) -> None:
        """Give up all that a request holds after a violation: its pages are never used again once nobody else holds
        them, and they and all that descend from them leave the prefix cache.

        A pair that is no right any more is left alone if `lenient` (the request is known to be bad), else PoolCorrupt.
        """
        book = self._pool.book
        self.drop_pages([page for page, tag in holding.pairs() if book.is_right(page, tag)])
        self._cancel_copies(holding)
        self._pool.set_aside(holding, lenient=lenient)

    def drop_pages(self, pages: Iterable[int]) -> None:
        """Trust these pages no more: they and all that descend from them leave the prefix cache, and they are set aside
        once nobody holds them. So is what is about to be copied from them. Only live and retained pages are meant."""
        pages = set(pages)
        pages.update(copy.target for copy in self._copies.values() if copy.source in pages)
        self._pool.condemn(pages)
        for page in pages:
            entry = None if self._prefix is None else self._prefix.entry_of(page)
            if entry is not None:
                self._forget(entry)

    def take_updates(self) -> DeviceUpdates:
        """All changes since the last call, for the device to make before the next step."""
        copies = tuple(self._copies.values())
        self._copies.clear()
        self.counters.pages_copied += len(copies)
        return DeviceUpdates(self._pool.take_updates(), copies)

    @property
    def has_findings(self) -> bool:
        """Whether `take_findings` would give any."""
        return bool(self._findings) or self._pool.has_findings

    def take_findings(self) -> list[HostFinding]:
        """What was found in passing since the last call."""
        findings, self._findings = self._findings, []
        return findings + self._pool.take_findings()

    def check_changed(self) -> list[HostFinding]:
        """L0 of each step: contradictions among the pages changed since the last call; O(changed pages)."""
        return self._pool.check_changed()

    def check_integrity(self, holdings: Iterable[Holding]) -> None:
        """Full audit against all holdings, prefix entries included; raises PoolCorrupt. A pass over all pages."""
        self._pool.check_integrity(holdings)
        book, entries = self._pool.book, [] if self._prefix is None else list(self._prefix.entries())
        if len(entries) != sum(book.kept) or len({entry.page for entry in entries}) != len(entries):
            raise PoolCorrupt(f"{sum(book.kept)} pages are kept for {len(entries)} prefix entries")
        for entry in entries:
            if self._unreadable(entry) is not None:
                raise PoolCorrupt(f"a prefix entry keeps pair (page {entry.page}, tag {entry.tag}), which is no right")
            if (entry.idle_since is not None) != (book.home[entry.page] is Home.RETAINED):
                raise PoolCorrupt(f"page {entry.page} is {book.home[entry.page].name}, its prefix entry does not know")

    def _unreadable(self, entry: Entry) -> HostReason | None:
        book = self._pool.book
        if not book.is_readable(entry.page, entry.tag):
            return HostReason.PAIR
        return None if book.fill[entry.page] == self.page_size else HostReason.FILL

    def _evict(self) -> bool:
        """Give up the prefix that nobody uses for the longest time; False when there is none."""
        entry = None if self._prefix is None else self._prefix.oldest()
        if entry is None:
            return False
        before = self.free_pages
        self._forget(entry)
        self.counters.evicted_pages += self.free_pages - before
        return True

    def _forget(self, entry: Entry) -> None:
        assert self._prefix is not None
        for dropped in self._prefix.drop(entry):
            self._pool.discard(dropped.page, dropped.tag)

    def _mark_used(self, holding: Holding) -> None:
        if self._prefix is not None:
            for page in holding.pages:
                self._prefix.used(page)

    def _mark_unused(self, retained: list[int]) -> None:
        if self._prefix is not None:
            for page in retained:
                self._prefix.unused(page)

    def _require_committed(self, parent: Holding, chain: Chain, tokens: int) -> None:
        fill, pages = self._pool.book.fill, parent.pages[: self.pages_for(tokens)]
        committed = sum(fill[page] for page in pages)
        if tokens > min(committed, len(chain.tokens)):
            raise ValueError(f"a fork of {tokens} tokens of a request that has {committed} in the cache")

    def _copy(self, source: int, target: int, tokens: int) -> None:
        pending = self._copies.get(source)
        if pending is not None:
            source = pending.source  # not copied yet: its content is still there
        self._copies[target] = PageCopy(source, target, tokens)

    def _cancel_copies(self, holding: Holding) -> None:
        """A page that is given up needs no content."""
        if self._copies:
            for page in holding.pages:
                self._copies.pop(page, None)
