"""PrefixCache: which pages hold the keys and values of which prefix, and which of them to give up first.

A prefix is a chain of full pages. A page's digest covers everything that its keys and values depend on: its own tokens
and the digest of the page before it, or for the first page the typed key (model, KV format and scaling, page size,
adapter, salt). A hit compares the tokens themselves all the same, so that a collision is a miss and not a wrong answer.

           key ----- A ----- B ----- C          B is kept for C's sake; C and D are leaves.
                      \\----- D                   Evicted first: the leaf that nobody uses for the longest time.

The cache knows digests, not references: `KvManager` tells it when a page stops or starts to be used by requests.
"""

from __future__ import annotations

import heapq
import json
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from octavo_runtime.contract.precision import KvFormat, KvScaling

DIGEST_BYTES = 16


@dataclass(frozen=True)
class PrefixKey:
    """What a request's prefixes depend on besides its tokens."""

    adapter: str = ""
    salt: str = ""
    """Requests share prefixes only with those of the same salt."""


@dataclass(frozen=True)
class PrefixEpoch:
    """What all prefixes of one process depend on."""

    revision: str
    """Of the model."""
    kv_format: KvFormat
    page_size: int
    """Tokens per page."""
    kv_scaling: KvScaling = KvScaling.PER_TENSOR


@dataclass(frozen=True)
class PageKey:
    """One full page of a chain."""

    digest: bytes
    parent: bytes
    """Digest of the page before it, or of the chain's typed key."""
    tokens: bytes
    """The page's own tokens as i64."""


class Chain:
    """The full pages of one request's growing token list, hashed when first asked for."""

    def __init__(self, tokens: list[int], root: bytes, page_size: int) -> None:
        self.tokens = tokens
        self.root = root
        self._page_size = page_size
        self._pages: list[PageKey] = []

    def page(self, logical: int) -> PageKey:
        """The key of page `logical`; raises IndexError when the tokens do not fill it."""
        while len(self._pages) <= logical:
            start = len(self._pages) * self._page_size
            tokens = self.tokens[start : start + self._page_size]
            if len(tokens) < self._page_size:
                raise IndexError(f"page {logical} of {self._page_size} tokens: there are {len(self.tokens)} tokens")
            parent = self._pages[-1].digest if self._pages else self.root
            data = array("q", tokens).tobytes()
            self._pages.append(PageKey(blake2b(parent + data, digest_size=DIGEST_BYTES).digest(), parent, data))
        return self._pages[logical]


@dataclass(eq=False)
class Entry:
    """One cached page."""

    key: PageKey
    page: int
    tag: int
    children: set[bytes] = field(default_factory=set)
    idle_since: int | None = None
    """When the last request that used it ended, on the cache's own clock; None while one does."""


class PrefixCache:
    """Entries by digest and by page; every page of an entry is full and was computed with clean verdicts."""

    def __init__(self, epoch: PrefixEpoch) -> None:
        self.page_size = epoch.page_size
        self._epoch = epoch
        self._entries: dict[bytes, Entry] = {}
        self._by_page: dict[int, Entry] = {}
        self._idle: OrderedDict[bytes, Entry] = OrderedDict()
        self._leaves: list[tuple[int, bytes]] = []
        """Heap of (idle since, digest) of idle leaves; also of some that are neither any more."""
        self._clock = 0

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> Iterator[Entry]:
        """All entries, for an audit."""
        return iter(self._entries.values())

    def entry_of(self, page: int) -> Entry | None:
        """The entry that keeps `page`."""
        return self._by_page.get(page)

    def parent_of(self, entry: Entry) -> Entry | None:
        """The entry of the page before it; None for a chain's first page."""
        return self._entries.get(entry.key.parent)

    def chain(self, tokens: list[int], key: PrefixKey) -> Chain:
        """The chain of a request; `tokens` may grow, but never change."""
        epoch = self._epoch
        stored_as = [epoch.kv_format.value, epoch.kv_scaling.value, epoch.page_size]
        typed = [epoch.revision, *stored_as, key.adapter, key.salt]
        root = blake2b(json.dumps(typed).encode(), digest_size=DIGEST_BYTES, person=b"octavo prefix").digest()
        return Chain(tokens, root, self.page_size)

    def find(self, chain: Chain, limit: int) -> Iterator[Entry]:
        """Entries of the first `limit` pages of `chain`, up to the first that is not cached."""
        for logical in range(limit):
            key = chain.page(logical)
            entry = self._entries.get(key.digest)
            if entry is None or entry.key != key:
                return
            yield entry

    def add(self, chain: Chain, logical: int, page: int, tag: int) -> bool:
        """Enter a page that a request uses; False when its prefix is cached already or the one before it is not."""
        key = chain.page(logical)
        parent = self._entries.get(key.parent)
        if key.digest in self._entries or page in self._by_page or (parent is None and key.parent != chain.root):
            return False
        self._entries[key.digest] = self._by_page[page] = Entry(key, page, tag)
        if parent is not None:
            parent.children.add(key.digest)
        return True

    def drop(self, entry: Entry) -> list[Entry]:
        """Forget an entry and all that descend from it; returns them."""
        parent = self.parent_of(entry)
        if parent is not None:
            parent.children.discard(entry.key.digest)
            self._offer(parent)
        dropped, left = [], [entry]
        while left:
            one = left.pop()
            left.extend(self._entries[digest] for digest in one.children)
            del self._entries[one.key.digest]
            self._by_page.pop(one.page, None)
            self._idle.pop(one.key.digest, None)
            dropped.append(one)
        return dropped

    def used(self, page: int) -> None:
        """A request uses the page now."""
        entry = self._by_page.get(page)
        if entry is not None and entry.idle_since is not None:
            entry.idle_since = None
            del self._idle[entry.key.digest]

    def unused(self, page: int) -> None:
        """No request uses the page any more."""
        entry = self._by_page.get(page)
        if entry is not None and entry.idle_since is None:
            self._clock += 1
            entry.idle_since = self._clock
            self._idle[entry.key.digest] = entry
            self._offer(entry)

    def oldest(self) -> Entry | None:
        """The entry to give up first: the leaf that is unused for the longest time.

        Where every unused entry has a descendant in use (of a request that computed the same prefix at the same time
        and keeps its own copy), the one unused for the longest time.
        """
        while self._leaves:
            since, digest = self._leaves[0]
            entry = self._entries.get(digest)
            if entry is not None and entry.idle_since == since and not entry.children:
                return entry
            heapq.heappop(self._leaves)
        return next(iter(self._idle.values()), None)

    def _offer(self, entry: Entry) -> None:
        if entry.idle_since is None or entry.children:
            return
        if len(self._leaves) > 2 * len(self._entries) + 64:
            self._leaves = [(e.idle_since, d) for d, e in self._idle.items() if not e.children and e.idle_since]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (entry.idle_since, entry.key.digest))
