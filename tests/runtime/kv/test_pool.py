"""The page pool against a model of it: conservation, tags, and no page in two places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from octavo_kernels.formats.binding import add, mix
from octavo_kernels.formats.place import fill_of, logical_of
from octavo_runtime.kv.pool import NULL_PAGE, WRITER_NULL, Holding, Nonces, OutOfPages, PagePool, PoolCorrupt

PAGES, PAGE_SIZE = 9, 4


class PoolMachine(RuleBasedStateMachine):
    """Any interleaving of what requests can do to a pool leaves every page in exactly one place."""

    holdings = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, PAGE_SIZE)
        self.nonces = Nonces(seed=1)
        self.live: list[Holding] = []
        self.revoked: set[tuple[int, int]] = set()
        self.device = {"tags": [0] + [1] * (PAGES - 1), "writers": [0] * PAGES, "places": [0] * PAGES}

    @rule(target=holdings)
    def arrive(self) -> Holding:
        holding = Holding(self.nonces.take())
        self.live.append(holding)
        return holding

    @rule(holding=holdings, tokens=st.integers(0, PAGES * PAGE_SIZE))
    def extend(self, holding: Holding, tokens: int) -> None:
        before = list(holding.pairs())
        free = self.pool.free_pages
        missing = self.pool.missing_pages(holding, tokens)
        if missing > free:
            with pytest.raises(OutOfPages):
                self.pool.extend(holding, tokens)
            assert list(holding.pairs()) == before
        else:
            self.pool.extend(holding, tokens)
            assert list(holding.pairs())[: len(before)] == before
            assert self.pool.free_pages == free - missing
            assert not self.revoked & set(holding.pairs()), "a pair came to life again"

    @rule(holding=consumes(holdings))
    def release(self, holding: Holding) -> None:
        self.revoked |= set(holding.pairs())
        self.pool.release(holding)
        self.live.remove(holding)

    @rule(holding=consumes(holdings))
    def set_aside(self, holding: Holding) -> None:
        pages = set(holding.pages)
        before = self.pool.set_aside_pages
        self.revoked |= set(holding.pairs())
        self.pool.set_aside(holding)
        self.live.remove(holding)
        assert self.pool.set_aside_pages == before + len(pages)

    @rule()
    def upload(self) -> None:
        updates = self.pool.take_updates()
        for index, page in enumerate(updates.pages):
            self.device["tags"][page] = int(updates.tags[index])
            self.device["writers"][page] = int(updates.writers[index])
            self.device["places"][page] = int(updates.places[index])
        everything = self.pool.records()
        assert self.device["tags"] == everything.tags.tolist(), "the device was not told of every change"
        assert self.device["writers"] == everything.writers.tolist()
        assert list(map(logical_of, self.device["places"])) == list(map(logical_of, everything.places.tolist()))

    @invariant()
    def the_books_balance(self) -> None:
        self.pool.check_integrity(self.live)
        held = [page for holding in self.live for page in holding.pages]
        assert len(held) == len(set(held))
        assert NULL_PAGE not in held
        assert len(held) + self.pool.free_pages + self.pool.set_aside_pages == PAGES - 1
        assert all(tag % 2 == 0 and tag for holding in self.live for tag in holding.tags)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def holding_of(pool: PagePool, tokens: int, nonce: int = 7) -> Holding:
    holding = Holding(nonce)
    pool.extend(holding, tokens)
    return holding


def test_the_oldest_free_page_is_reused_first() -> None:
    pool = PagePool(4, PAGE_SIZE)
    first, second = holding_of(pool, PAGE_SIZE), holding_of(pool, PAGE_SIZE)
    pages = [*second.pages, *first.pages]
    pool.release(second)
    pool.release(first)
    assert holding_of(pool, 3 * PAGE_SIZE).pages == [3, *pages]


def test_a_pair_of_a_freed_page_is_worth_nothing() -> None:
    pool = PagePool(2, PAGE_SIZE)
    holding = holding_of(pool, PAGE_SIZE)
    kept = Holding(holding.nonce, list(holding.pages), list(holding.tags), holding.binding)
    pool.release(holding)
    with pytest.raises(PoolCorrupt, match=r"page 1, tag 2"):
        pool.release(kept)
    again = holding_of(pool, PAGE_SIZE, nonce=8)
    assert again.pages == kept.pages
    with pytest.raises(PoolCorrupt):
        pool.check_integrity([kept])


def test_a_shared_page_is_free_only_after_its_last_reference() -> None:
    pool = PagePool(2, PAGE_SIZE)
    holding = holding_of(pool, PAGE_SIZE)
    other = Holding(holding.nonce, list(holding.pages), list(holding.tags), holding.binding)
    pool.retain(holding.pages[0], holding.tags[0])
    pool.release(holding)
    assert pool.free_pages == 0
    pool.check_integrity([other])
    pool.release(other)
    assert pool.free_pages == 1


def test_a_shared_page_that_was_set_aside_never_comes_back() -> None:
    pool = PagePool(2, PAGE_SIZE)
    holding = holding_of(pool, PAGE_SIZE)
    other = Holding(holding.nonce, list(holding.pages), list(holding.tags), holding.binding)
    pool.retain(holding.pages[0], holding.tags[0])
    pool.set_aside(holding)
    pool.release(other)
    assert (pool.free_pages, pool.set_aside_pages, pool.usable_pages) == (0, 1, 0)


def test_the_binding_is_the_sum_over_all_pairs_of_the_request() -> None:
    pool = PagePool(5, PAGE_SIZE)
    holding = holding_of(pool, 2 * PAGE_SIZE, nonce=0xFFFF_FFF0)
    pool.extend(holding, 4 * PAGE_SIZE)
    expected = 0
    for logical, (page, tag) in enumerate(holding.pairs()):
        expected = add(expected, mix(holding.nonce, logical, page, tag))
    assert holding.binding == expected


def test_tags_go_on_at_two_after_the_last_one() -> None:
    pool = PagePool(2, PAGE_SIZE)
    pool.book.tag[1] = 2**32 - 1
    assert holding_of(pool, 1).tags == [2]
    pool.check_integrity([Holding(7, [1], [2], mix(7, 0, 1, 2))])


def test_records_are_u32_bit_patterns() -> None:
    pool = PagePool(2, PAGE_SIZE)
    holding_of(pool, 1, nonce=0xFFFF_FFFE)
    updates = pool.take_updates()
    assert updates.writers.view(np.uint32).tolist() == [0xFFFF_FFFE]
    assert pool.take_updates().empty


def fill_marks(pool: PagePool) -> list[int]:
    return [fill_of(place) for place in pool.records().places.tolist()]


def test_fill_marks_follow_the_tokens_of_a_step() -> None:
    pool = PagePool(4, PAGE_SIZE)
    holding = holding_of(pool, 10)
    pool.filled(holding, 0, 6)
    pool.filled(holding, 6, 10)
    assert fill_marks(pool) == [0, 4, 4, 2]
    pool.release(holding)
    assert fill_marks(pool) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pool: pool._free.append(pool._free[0]), "free list twice"),
        (lambda pool: pool._free.append(1), "page 1 is LIVE and free"),
        (lambda pool: pool._free.popleft(), "page 2 is FREE and not free"),
        (lambda pool: pool.book.refs.__setitem__(1, 2), "counts 2 references, 1 exist"),
        (lambda pool: pool.book.tag.__setitem__(NULL_PAGE, 2), "host_null_page"),
        (lambda pool: pool.book.tag.__setitem__(3, 4), "page 3 .FREE. contradicts itself: host_tag"),
        (lambda pool: pool.book.logical.__setitem__(1, 5), "logical index 5, held as 0"),
    ],
)
def test_the_audit_sees_damage(damage: object, message: str) -> None:
    pool = PagePool(5, PAGE_SIZE)
    holding = holding_of(pool, PAGE_SIZE)
    pool.check_integrity([holding])
    assert callable(damage)
    damage(pool)
    with pytest.raises(PoolCorrupt, match=message):
        pool.check_integrity([holding])


def test_the_audit_sees_a_binding_that_drifted() -> None:
    pool = PagePool(5, PAGE_SIZE)
    holding = holding_of(pool, PAGE_SIZE)
    holding.binding += 1
    with pytest.raises(PoolCorrupt, match="binding"):
        pool.check_integrity([holding])


def test_nonces_never_repeat_and_never_mean_something_else() -> None:
    nonces = Nonces(seed=2**32 - 0x9E3779B1)  # the next one in the sequence is 0
    taken = [nonces.take() for _ in range(20_000)]
    assert len(set(taken)) == len(taken)
    assert not {WRITER_NULL, 2**32 - 1} & set(taken)
