"""KvManager case by case: prefix hits, eviction, forks, pages that are trusted no more, and what the host notices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest

from octavo_runtime.contract.precision import KvFormat, KvScaling
from octavo_runtime.kv.holding import Holding, Nonces
from octavo_runtime.kv.manager import KvManager
from octavo_runtime.kv.pages import NULL_PAGE, WRITER_SHARED, HostFinding, HostReason
from octavo_runtime.kv.pool import OutOfPages, PagePool, PoolCorrupt
from octavo_runtime.kv.prefix import Chain, PrefixCache, PrefixEpoch, PrefixKey
from octavo_runtime.kv.updates import PageCopy

PAGE_SIZE = 4
EPOCH = PrefixEpoch("revision", KvFormat.FP8, PAGE_SIZE)


@dataclass
class Request:
    """A request that has computed all its tokens, unless told otherwise."""

    holding: Holding
    chain: Chain
    hit: int


@dataclass
class Rig:
    """A manager and short words for what the engine does with it."""

    pages: int
    epoch: PrefixEpoch = EPOCH
    pool: PagePool = field(init=False)
    prefix: PrefixCache = field(init=False)
    kv: KvManager = field(init=False)

    def __post_init__(self) -> None:
        self.pool = PagePool(self.pages, self.epoch.page_size)
        self.prefix = PrefixCache(self.epoch)
        self.kv = KvManager(self.pool, Nonces(seed=1), self.prefix)

    def run(self, tokens: list[int], key: PrefixKey | None = None, *, shareable: bool = True) -> Request:
        request = self.arrive(tokens, key)
        self.kv.extend(request.holding, len(tokens))
        self.kv.commit(request.holding, request.chain, request.hit, len(tokens), shareable=shareable)
        return request

    def arrive(self, tokens: list[int], key: PrefixKey | None = None) -> Request:
        chain = self.kv.chain(tokens, key or PrefixKey())
        match = self.kv.match(chain, len(tokens))
        return Request(self.kv.start(match), chain, match.tokens)

    def hit(self, tokens: list[int], key: PrefixKey | None = None) -> int:
        return self.kv.match(self.kv.chain(tokens, key or PrefixKey()), len(tokens)).tokens


@pytest.fixture
def rig() -> Rig:
    return Rig(pages=9)


def numbers(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


def test_a_finished_requests_full_pages_are_hit_by_the_next_one(rig: Rig) -> None:
    first = rig.run(numbers(10))
    pairs = list(first.holding.pairs())
    rig.kv.release(first.holding)
    second = rig.arrive(numbers(12))
    assert list(second.holding.pairs()) == pairs[:2]
    assert (second.hit, second.holding.cached_tokens, second.holding.shared) == (8, 8, 2)
    assert (rig.kv.counters.queried_tokens, rig.kv.counters.hit_tokens) == (22, 8)
    rig.kv.check_integrity([second.holding])


def test_a_running_requests_pages_are_hit_as_well(rig: Rig) -> None:
    first = rig.run(numbers(8))
    second = rig.arrive(numbers(12))
    assert second.holding.pages == first.holding.pages
    assert second.holding.binding != first.holding.binding
    rig.kv.check_integrity([first.holding, second.holding])


def test_the_last_token_is_never_hit_because_its_logits_are_needed(rig: Rig) -> None:
    rig.run(numbers(8))
    assert rig.hit(numbers(8)) == 4
    assert rig.hit(numbers(9)) == 8


def test_pages_are_not_shareable_before_their_step_is_committed(rig: Rig) -> None:
    first = rig.arrive(numbers(8))
    rig.kv.extend(first.holding, 8)
    assert rig.hit(numbers(9)) == 0
    rig.kv.commit(first.holding, first.chain, 0, 7)
    assert rig.hit(numbers(9)) == 4
    rig.kv.commit(first.holding, first.chain, 7, 8)
    assert rig.hit(numbers(9)) == 8


def test_a_shared_page_is_read_only_on_the_device(rig: Rig) -> None:
    first = rig.run(numbers(6))
    updates = rig.kv.take_updates().records
    writers = dict(zip(updates.pages.tolist(), updates.writers.tolist(), strict=True))
    assert writers[first.holding.pages[0]] == WRITER_SHARED
    assert writers[first.holding.pages[1]] % 2**32 == first.holding.nonce


def test_tokens_without_a_clean_verdict_are_never_shared_nor_what_follows_them(rig: Rig) -> None:
    first = rig.run(numbers(4), shareable=False)
    first.chain.tokens.extend(numbers(8, 4))
    rig.kv.extend(first.holding, 12)
    rig.kv.commit(first.holding, first.chain, 4, 12)
    assert rig.hit(numbers(13)) == 0


@pytest.mark.parametrize(
    "other", [PrefixKey(salt="b"), PrefixKey(adapter="a"), PrefixKey(), PrefixKey(adapter="a,", salt="")]
)
def test_another_salt_or_adapter_is_another_prefix(rig: Rig, other: PrefixKey) -> None:
    rig.run(numbers(8), PrefixKey(salt="a"))
    assert rig.hit(numbers(9), PrefixKey(salt="a")) == 8
    assert rig.hit(numbers(9), other) == 0


@pytest.mark.parametrize(
    "epoch",
    [
        PrefixEpoch("other", KvFormat.FP8, PAGE_SIZE),
        PrefixEpoch("revision", KvFormat.BF16, PAGE_SIZE),
        PrefixEpoch("revision", KvFormat.FP8, PAGE_SIZE, KvScaling.PER_TOKEN_HEAD),
    ],
)
def test_another_model_kv_format_or_scaling_gives_other_digests(rig: Rig, epoch: PrefixEpoch) -> None:
    ours, theirs = (rig.kv.chain(numbers(4), PrefixKey()), Rig(9, epoch).kv.chain(numbers(4), PrefixKey()))
    assert ours.page(0).digest != theirs.page(0).digest


def test_a_collision_of_digests_is_a_miss(rig: Rig) -> None:
    rig.run(numbers(4))
    chain = rig.kv.chain(numbers(5, first=7), PrefixKey())
    own, cached = chain.page(0), rig.kv.chain(numbers(4), PrefixKey()).page(0)
    object.__setattr__(own, "digest", cached.digest)
    assert rig.kv.match(chain, 5).tokens == 0


def test_the_same_page_after_another_one_is_another_prefix(rig: Rig) -> None:
    same = numbers(4, first=50)
    for start in (numbers(4), numbers(4, first=20)):
        rig.run([*start, *same])
        assert rig.hit([*start, *same, 0]) == 8
    assert len(rig.prefix) == 4


def test_the_same_prefix_computed_twice_is_cached_once_and_the_copy_stays_private(rig: Rig) -> None:
    first, second = rig.arrive(numbers(4)), rig.arrive(numbers(4))
    for request in (first, second):
        rig.kv.extend(request.holding, 4)
        rig.kv.commit(request.holding, request.chain, 0, 4)
    assert (first.holding.shared, second.holding.shared) == (1, 0)
    rig.kv.check_integrity([first.holding, second.holding])
    rig.kv.release(second.holding)
    assert (rig.kv.retained_pages, rig.kv.used_pages) == (0, 1)


def test_under_pressure_the_leaf_that_is_unused_for_the_longest_time_goes_first(rig: Rig) -> None:
    old, new = rig.run(numbers(8)), rig.run(numbers(8, first=100))
    rig.kv.release(old.holding)
    rig.kv.release(new.holding)
    assert (rig.kv.free_pages, rig.kv.retained_pages, rig.kv.available_pages) == (4, 4, 8)
    big = rig.arrive(numbers(20, first=50))
    rig.kv.extend(big.holding, 20)
    assert (rig.hit(numbers(9)), rig.hit(numbers(9, first=100))) == (4, 8)
    rig.kv.extend(big.holding, 28)
    assert (rig.hit(numbers(9)), rig.hit(numbers(9, first=100))) == (0, 4)
    assert rig.kv.counters.evicted_pages == 3
    rig.kv.check_integrity([big.holding])


def test_a_hit_makes_a_prefix_young_again(rig: Rig) -> None:
    old, new = rig.run(numbers(4)), rig.run(numbers(4, first=100))
    rig.kv.release(old.holding)
    rig.kv.release(new.holding)
    rig.kv.release(rig.arrive(numbers(5)).holding)
    big = rig.arrive(numbers(28, first=50))
    rig.kv.extend(big.holding, 28)
    assert (rig.hit(numbers(5)), rig.hit(numbers(5, first=100))) == (4, 0)


def test_a_prefix_in_use_is_never_evicted(rig: Rig) -> None:
    first = rig.run(numbers(16))
    other = rig.arrive(numbers(20, first=50))
    with pytest.raises(OutOfPages, match="5 KV pages needed, 4 free"):
        rig.kv.extend(other.holding, 20)
    assert other.holding.pages == []
    assert rig.hit(numbers(17)) == 16
    rig.kv.check_integrity([first.holding, other.holding])


def test_an_unused_prefix_with_a_follower_in_use_goes_when_nothing_else_is_left() -> None:
    rig = Rig(pages=4)
    first, second = rig.arrive(numbers(4)), rig.arrive(numbers(4))
    for request in (first, second):
        rig.kv.extend(request.holding, 4)
        rig.kv.commit(request.holding, request.chain, 0, 4)
    second.chain.tokens.extend(numbers(4, 4))
    rig.kv.extend(second.holding, 8)
    rig.kv.commit(second.holding, second.chain, 4, 8)
    rig.kv.release(first.holding)
    assert (rig.kv.free_pages, rig.kv.available_pages) == (0, 1)
    third = rig.arrive(numbers(4, first=50))
    rig.kv.extend(third.holding, 4)
    assert rig.hit(numbers(9)) == 0
    rig.kv.check_integrity([second.holding, third.holding])


def test_a_fork_shares_full_pages_and_copies_the_partial_one(rig: Rig) -> None:
    parent = rig.run(numbers(10))
    rig.kv.take_updates()
    child = rig.kv.fork(parent.holding, parent.chain, 9)
    assert child.pages[:2] == parent.holding.pages[:2]
    assert (child.cached_tokens, child.shared) == (9, 2)
    updates = rig.kv.take_updates()
    assert updates.copies == (PageCopy(parent.holding.pages[2], child.pages[2], 1),)
    assert updates.records.places.tolist() == [2 << 8 | 1]
    assert (rig.kv.counters.forks, rig.kv.counters.pages_copied) == (1, 1)
    rig.kv.check_integrity([parent.holding, child])


def test_a_forks_shared_pages_are_read_only_without_a_prefix_cache_too() -> None:
    pool = PagePool(9, PAGE_SIZE)
    kv = KvManager(pool, Nonces(seed=1), None)
    chain = kv.chain(numbers(8), PrefixKey())
    parent = kv.start(kv.match(chain, 8))
    kv.extend(parent, 8)
    kv.commit(parent, chain, 0, 8)
    assert pool.book.writer[parent.pages[0]] == parent.nonce
    child = kv.fork(parent, chain, 8)
    assert [pool.book.writer[page] for page in child.pages] == [WRITER_SHARED] * 2
    assert kv.counters.queried_tokens == 0
    kv.release(parent)
    kv.release(child)
    assert kv.free_pages == 8


def test_a_fork_of_a_fork_that_was_not_copied_yet_copies_from_the_original(rig: Rig) -> None:
    parent = rig.run(numbers(3))
    child = rig.kv.fork(parent.holding, parent.chain, 3)
    grandchild = rig.kv.fork(child, parent.chain, 2)
    source = parent.holding.pages[0]
    assert rig.kv.take_updates().copies == (
        PageCopy(source, child.pages[0], 3),
        PageCopy(source, grandchild.pages[0], 2),
    )


def test_a_fork_that_ends_before_the_step_copies_nothing(rig: Rig) -> None:
    parent = rig.run(numbers(3))
    rig.kv.release(rig.kv.fork(parent.holding, parent.chain, 3))
    assert rig.kv.take_updates().copies == ()


def test_a_fork_of_tokens_that_are_not_committed_is_refused(rig: Rig) -> None:
    parent = rig.arrive(numbers(8))
    rig.kv.extend(parent.holding, 8)
    rig.kv.commit(parent.holding, parent.chain, 0, 5)
    with pytest.raises(ValueError, match="a fork of 6 tokens of a request that has 5 in the cache"):
        rig.kv.fork(parent.holding, parent.chain, 6)


def test_a_fork_without_a_page_for_its_copy_takes_nothing() -> None:
    rig = Rig(pages=3)
    parent = rig.run(numbers(6))
    with pytest.raises(OutOfPages):
        rig.kv.fork(parent.holding, parent.chain, 6)
    rig.kv.check_integrity([parent.holding])


def test_pages_set_aside_leave_the_prefix_cache_with_all_that_descends_from_them(rig: Rig) -> None:
    first = rig.run(numbers(4))
    second = rig.run(numbers(12))
    assert second.hit == 4
    rig.kv.release(second.holding)
    rig.kv.set_aside(first.holding)
    assert rig.hit(numbers(13)) == 0
    assert (rig.kv.set_aside_pages, rig.kv.free_pages, rig.kv.usable_pages) == (1, 7, 7)
    rig.kv.check_integrity([])


def test_what_is_computed_from_a_page_that_is_trusted_no_more_is_never_shared(rig: Rig) -> None:
    first, second = rig.run(numbers(4)), rig.arrive(numbers(9))
    rig.kv.set_aside(first.holding)
    rig.run(numbers(4))
    rig.kv.extend(second.holding, 9)
    rig.kv.commit(second.holding, second.chain, 4, 9)
    assert rig.hit(numbers(9)) == 4, "only the page that was computed anew"


def test_a_pair_that_is_no_right_any_more_is_left_alone_and_found(rig: Rig) -> None:
    first, second = rig.run(numbers(4)), rig.run(numbers(4, first=50))
    page = first.holding.pages[0]
    first.holding.tags[0] += 2
    rig.kv.release(first.holding)
    assert rig.kv.take_findings() == [HostFinding(page, HostReason.PAIR)]
    second.holding.tags[0] += 2
    rig.kv.set_aside(second.holding)
    assert (rig.kv.take_findings(), rig.kv.set_aside_pages) == ([], 0)
    with pytest.raises(PoolCorrupt):
        rig.kv.set_aside(Holding(7, [page], [99]), lenient=False)


def test_a_live_page_in_the_free_list_is_found_before_it_is_given_away(rig: Rig) -> None:
    first, second = rig.run(numbers(6)), rig.arrive(numbers(8, first=50))
    rig.pool._free.appendleft(first.holding.pages[1])
    rig.kv.extend(second.holding, 8)
    assert not set(first.holding.pages) & set(second.holding.pages)
    assert rig.kv.take_findings() == [HostFinding(first.holding.pages[1], HostReason.HOME)]
    rig.kv.check_integrity([first.holding, second.holding])


def test_a_double_free_at_the_end_of_the_free_list_is_found_in_the_same_step(rig: Rig) -> None:
    first = rig.run(numbers(6))
    rig.pool._free.append(first.holding.pages[1])
    rig.pool._free.append(rig.pool._free[0])
    assert {finding.page for finding in rig.kv.check_changed()} == {first.holding.pages[1], rig.pool._free[0]}
    assert rig.kv.check_changed() == []
    rig.kv.check_integrity([first.holding])


def test_a_page_that_left_the_free_list_for_nowhere_is_found_and_set_aside(rig: Rig) -> None:
    lost = rig.pool._free.pop()
    assert rig.kv.check_changed() == [HostFinding(lost, HostReason.HOME)]
    assert rig.kv.set_aside_pages == 1
    rig.kv.check_integrity([])


def test_more_double_frees_than_free_pages_end_in_out_of_pages(rig: Rig) -> None:
    first, second = rig.run(numbers(28)), rig.arrive(numbers(8, first=50))
    rig.pool._free.extendleft(first.holding.pages)
    with pytest.raises(OutOfPages, match="2 KV pages needed, 1 free"):
        rig.kv.extend(second.holding, 8)
    rig.kv.check_integrity([first.holding, second.holding])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda book, page: book.tag.__setitem__(page, 3), HostReason.TAG),
        (lambda book, page: book.refs.__setitem__(page, 0), HostReason.REFERENCES),
        (lambda book, page: book.writer.__setitem__(page, 0), HostReason.WRITER),
        (lambda book, page: book.writer.__setitem__(page, 5), HostReason.WRITER),
        (lambda book, page: book.fill.__setitem__(page, 3), HostReason.FILL),
        (lambda book, _: book.tag.__setitem__(NULL_PAGE, 2), HostReason.NULL_PAGE),
    ],
)
def test_facts_of_a_changed_page_that_contradict_each_other_are_found(
    rig: Rig, damage: Callable[[object, int], None], reason: HostReason
) -> None:
    first = rig.run(numbers(4))
    damage(rig.pool.book, first.holding.pages[0])
    assert [finding.reason for finding in rig.kv.check_changed()] == [reason]


def test_a_page_published_before_it_is_full_is_found(rig: Rig) -> None:
    first = rig.arrive(numbers(4))
    rig.kv.extend(first.holding, 4)
    rig.prefix.add(first.chain, 0, first.holding.pages[0], first.holding.tags[0])
    rig.pool.keep(first.holding.pages[0], first.holding.tags[0])
    assert rig.hit(numbers(5)) == 0
    assert rig.kv.take_findings() == [HostFinding(first.holding.pages[0], HostReason.FILL)]


def test_a_stale_prefix_entry_is_found_and_not_read(rig: Rig) -> None:
    first = rig.run(numbers(8))
    entry = rig.prefix.entry_of(first.holding.pages[0])
    assert entry is not None
    entry.tag += 2
    assert rig.hit(numbers(9)) == 0
    assert rig.kv.take_findings() == [HostFinding(first.holding.pages[0], HostReason.PAIR)]
    assert len(rig.prefix) == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda rig, entry: setattr(entry, "tag", entry.tag + 2), "which is no right"),
        (lambda rig, entry: setattr(entry, "idle_since", None), "does not know"),
        (lambda rig, entry: rig.prefix.drop(entry), "1 pages are kept for 0 prefix entries"),
    ],
)
def test_the_audit_sees_a_prefix_cache_that_contradicts_the_pool(
    rig: Rig, damage: Callable[[Rig, object], None], message: str
) -> None:
    first = rig.run(numbers(4))
    page = first.holding.pages[0]
    rig.kv.release(first.holding)
    rig.kv.check_integrity([])
    damage(rig, rig.prefix.entry_of(page))
    with pytest.raises(PoolCorrupt, match=message):
        rig.kv.check_integrity([])


def lines_run(action: Callable[[], object]) -> int:
    """Lines of Python that `action` runs: a cost that does not depend on the machine."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "octavo_runtime" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def decode_costs(length: int) -> Iterator[int]:
    rig = Rig(pages=length // 64 + 9, epoch=PrefixEpoch("revision", KvFormat.FP8, 64))
    request = rig.run(numbers(length))
    rig.kv.take_updates()
    rig.kv.check_changed()
    for end in range(length + 1, length + 130):
        request.chain.tokens.append(0)

        def step(end: int = end) -> None:
            rig.kv.extend(request.holding, end)
            rig.kv.take_updates()
            rig.kv.commit(request.holding, request.chain, end - 1, end)
            rig.kv.check_changed()

        yield lines_run(step)


def test_the_hosts_work_of_a_decode_step_does_not_grow_with_the_context() -> None:
    assert list(decode_costs(64 * 1000)) == list(decode_costs(64 * 3))
