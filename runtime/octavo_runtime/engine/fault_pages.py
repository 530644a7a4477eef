"""Faults in the pool and the prefix cache: what a wrong allocator would do, past all that the real one refuses.

Each function looks for a victim among what runs and does the damage. What it returns settles it after the scheduler has
spoken: the Damage, or None where nobody met it (then it is undone). The pool's private parts are used on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo_kernels.formats.binding import add, mix
from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.engine.schedule import ScheduledRow
from octavo_runtime.engine.scheduler import Scheduler
from octavo_runtime.kv.holding import Holding
from octavo_runtime.kv.pages import WRITER_SHARED, Home, HostReason
from octavo_runtime.kv.prefix import Entry

FIRST_LIVE_TAG = 2


@dataclass(frozen=True)
class Damage:
    """What a fault did."""

    requests: tuple[str, ...]
    """Who would read or write wrongly; empty where it is nobody's request."""
    pages: tuple[int, ...]
    detail: str


Rows = Sequence[ScheduledRow]
Settle = Callable[[Rows], Damage | None]


def use_after_free(rng: random.Random, scheduler: Scheduler) -> Settle | None:
    """A private page is freed while requests still hold it; perhaps it is the next one to be handed out."""
    victim = _private_page(rng, scheduler.running, scheduler)
    if victim is None:
        return None
    page, _, holders = victim
    pool = scheduler.kv._pool
    pool.book.refs[page] = 0
    pool._retire(page)
    at_head = rng.random() < 0.5
    if at_head and pool._free and pool._free[-1] == page:
        pool._free.pop()
        pool._free.appendleft(page)
    damage = Damage(holders, (page,), f"page {page} freed {'and handed out next' if at_head else ''}".rstrip())
    return lambda _rows: damage


def two_owners(rng: random.Random, scheduler: Scheduler) -> Settle | None:
    """A private page becomes another request's next page as well, as a new allocation or without one."""
    victim = _private_page(rng, scheduler.running, scheduler)
    others = [r for r in scheduler.running if victim and victim[0] not in _held(r).pages]
    if victim is None or not others:
        return None
    page, tag, holders = victim
    other = rng.choice(others)
    holding, pool = _held(other), scheduler.kv._pool
    book, place = pool.book, len(holding.pages)
    if rng.random() < 0.5:
        book.next_tag(page)
        book.logical[page], book.writer[page], book.fill[page], book.refs[page] = place, holding.nonce, 0, 1
        holding.append(page, book.next_tag(page))
        pool._note(page)
        damage = Damage(holders, (page,), f"page {page} allocated again, to {other.id}")
    else:
        if book.logical[page] == place and other.computed < place * pool.page_size:
            return None  # neither read nor written in the next step
        holding.append(page, tag)
        damage = Damage((other.id,), (page,), f"page {page} of {holders[0]} given to {other.id} too")
    return lambda _rows: damage


def double_free(rng: random.Random, scheduler: Scheduler) -> Settle | None:
    """A page that requests hold, or that the prefix cache keeps, stands in the free list."""
    pool = scheduler.kv._pool
    page = used_page(rng, scheduler)
    if page is None:
        return None
    (pool._free.append if rng.random() < 0.5 else pool._free.appendleft)(page)
    damage = Damage(tuple({r.id for r in scheduler.holders_of(page)}), (page,), f"page {page} is in the free list")
    return lambda _rows: damage


def tokens_skipped(rng: random.Random, scheduler: Scheduler) -> Settle | None:
    """The host believes that some tokens of a prompt are in the cache which were never stored."""
    parents = [waiting.parent for waiting in scheduler.waiting]
    candidates = [r for r in scheduler.running if r.pending > 1 and r not in parents]
    if not candidates:
        return None
    request = rng.choice(candidates)
    holding, skipped = request.holding, rng.randint(1, request.pending - 1)
    request.computed += skipped

    def settle(rows: Rows) -> Damage | None:
        if any(row.request is request and request.holding is holding for row in rows):
            return Damage((request.id,), (), f"{skipped} tokens of {request.id} skipped")
        if request.holding is holding:
            request.computed -= skipped
        return None

    return settle


def stale_entry(rng: random.Random, scheduler: Scheduler) -> Settle | None:
    """A page that the next request in line would find in the prefix cache is evicted, and its entry is not told."""
    kv, pool = scheduler.kv, scheduler.kv._pool
    entries = [entry for entry in _cached_for_next(scheduler) if pool.book.home[entry.page] is Home.RETAINED]
    if not entries:
        return None
    entry = rng.choice(entries)
    pool.book.kept[entry.page] = False
    pool._retire(entry.page)

    def settle(_rows: Rows) -> Damage | None:
        if any((f.page, f.reason) == (entry.page, HostReason.PAIR) for f in kv._findings):
            return Damage((), (entry.page,), f"prefix entry of evicted page {entry.page}")
        if kv._prefix is not None and kv._prefix.entry_of(entry.page) is entry:
            kv._forget(entry)
        return None

    return settle


def entry_before_full(rng: random.Random, scheduler: Scheduler) -> Settle | None:
    """A page that its owner is still filling is in the prefix cache, for the next request in line to find."""
    pool, prefix = scheduler.kv._pool, scheduler.kv._prefix
    if prefix is None or not scheduler.waiting:
        return None
    following, logical = scheduler.waiting[0], len(_cached_for_next(scheduler))
    if following.chain is None or (logical + 1) * pool.page_size >= len(following.tokens):
        return None
    key = following.chain.page(logical)
    owners = [owner for owner in scheduler.running if _fills(owner, logical, pool.page_size, key.digest)]
    if not owners:
        return None
    owner = rng.choice(owners)
    nonce, page, tag = _held(owner).nonce, _held(owner).pages[logical], _held(owner).tags[logical]
    book = pool.book
    if book.writer[page] != nonce or not prefix.add(following.chain, logical, page, tag):
        return None
    fill = book.fill[page]
    book.writer[page], book.fill[page], book.kept[page] = WRITER_SHARED, pool.page_size, True

    def settle(rows: Rows) -> Damage | None:
        readers = {row.request.id for row in rows if page in _held(row.request).pages and row.request is not owner}
        if readers:
            return Damage(tuple(readers), (page,), f"page {page} of {owner.id} published with {fill} tokens")
        entry = prefix.entry_of(page)
        if entry is not None and book.tag[page] == tag:
            prefix.drop(entry)
            if book.home[page] is Home.LIVE:
                book.writer[page], book.fill[page], book.kept[page] = nonce, fill, False
            else:
                pool.discard(page, tag)
        return None

    return settle


def stale_adoption(rng: random.Random, scheduler: Scheduler, rows: Rows) -> Damage | None:
    """A request that starts from the prefix cache is given an earlier life of another page, past the tag comparison."""
    pool = scheduler.kv._pool
    book = pool.book
    starts = [
        row.request for row in rows if row.start == _held(row.request).cached_tokens and _held(row.request).shared
    ]
    page = rng.randrange(1, pool.num_pages)
    tag = book.tag[page] - (1 if book.tag[page] % 2 else 2)
    if not starts or tag < FIRST_LIVE_TAG or page in _held(request := rng.choice(starts)).pages:
        return None
    holding = _held(request)
    logical = rng.randrange(holding.shared)
    left = holding.pages[logical], holding.tags[logical]
    holding.pages[logical], holding.tags[logical] = page, tag
    terms = (mix(holding.nonce, place, *pair) for place, pair in enumerate(holding.pairs()))
    holding.binding = 0
    for term in terms:
        holding.binding = add(holding.binding, term)
    pool._drop(*left)
    if book.home[left[0]] is Home.RETAINED:
        scheduler.kv._mark_unused([left[0]])
    return Damage((request.id,), (page,), f"page {page} with the tag of an earlier life")


def early_publication(rng: random.Random, scheduler: Scheduler, rows: Rows) -> Damage | None:
    """A page is published before the step that fills it has run; its owner may be in the step or may not."""
    kv = scheduler.kv
    in_step = {row.request.order: row.start for row in rows}
    candidates = [r for r in scheduler.running if r.chain is not None and not _held(r).suspect]
    rng.shuffle(candidates)
    for request in candidates:
        holding, size = _held(request), kv.page_size
        start = in_step.get(request.order, request.computed)
        end = min(len(request.tokens), len(holding.pages) * size) // size * size
        entries = [] if kv._prefix is None else [kv._prefix.entry_of(page) for page in holding.pages]
        if kv._prefix is None or end <= start or request.chain is None:
            continue
        kv.commit(holding, request.chain, start, end)
        new = [p for p, before in zip(holding.pages, entries, strict=True) if before is not kv._prefix.entry_of(p)]
        if new:
            reader = (request.id,)
            return Damage(reader, tuple(new), f"page {new[0]} of {request.id} published before its step")
        for logical in range(start // size, end // size):  # cached already or without a cached parent: not published
            kv._pool.book.fill[holding.pages[logical]] = max(0, min(size, request.computed - logical * size))
    return None


def used_page(rng: random.Random, scheduler: Scheduler, but: Sequence[int] = ()) -> int | None:
    """A page that requests hold or the prefix cache keeps, and that is none of `but`."""
    pool = scheduler.kv._pool
    pages = {page for request in scheduler.running for page in _held(request).pages}
    pages |= {rng.randrange(1, pool.num_pages) for _ in range(16)}
    used = [p for p in sorted(pages - set(but)) if pool.book.home[p] in {Home.LIVE, Home.RETAINED}]
    return rng.choice(used) if used else None


def _private_page(
    rng: random.Random, running: Sequence[EngineRequest], scheduler: Scheduler
) -> tuple[int, int, tuple[str, ...]] | None:
    """(page, tag, holders) of a page that requests hold and the prefix cache does not keep."""
    book = scheduler.kv._pool.book
    pairs = [pair for request in running for pair in _held(request).pairs()]
    pairs = [(page, tag) for page, tag in pairs if book.is_right(page, tag) and not book.kept[page]]
    if not pairs:
        return None
    page, tag = rng.choice(pairs)
    return page, tag, tuple({request.id for request in scheduler.holders_of(page)})


def _cached_for_next(scheduler: Scheduler) -> list[Entry]:
    """What the prefix cache has of the next request in line."""
    prefix = scheduler.kv._prefix
    chain = scheduler.waiting[0].chain if scheduler.waiting else None
    if prefix is None or chain is None:
        return []
    return list(prefix.find(chain, (len(chain.tokens) - 1) // scheduler.kv.page_size))


def _fills(owner: EngineRequest, logical: int, page_size: int, digest: bytes) -> bool:
    """Whether `owner` has only a part of that very page in the cache."""
    begun = logical * page_size <= owner.computed < (logical + 1) * page_size < len(owner.tokens)
    if not begun or owner.chain is None or logical >= len(_held(owner).pages):
        return False
    return owner.chain.page(logical).digest == digest


def _held(request: EngineRequest) -> Holding:
    assert request.holding is not None
    return request.holding
