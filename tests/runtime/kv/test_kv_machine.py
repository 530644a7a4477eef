"""KvManager under any interleaving: whatever requests do, each reads its own tokens and every page is in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from octavo_kernels.formats.binding import add, mix
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.kv.holding import Holding, Nonces
from octavo_runtime.kv.manager import KvManager
from octavo_runtime.kv.pages import NULL_PAGE, WRITER_SHARED
from octavo_runtime.kv.pool import OutOfPages, PagePool
from octavo_runtime.kv.prefix import Chain, PrefixCache, PrefixEpoch, PrefixKey
from tests.runtime.kv.device_model import Content, DeviceModel

PAGES, PAGE_SIZE = 14, 4
SALTS = st.sampled_from(["", "", "other"])
PROMPTS = st.builds(
    lambda shared, own: [0] * shared + own, st.integers(0, 14), st.lists(st.integers(0, 1), min_size=1, max_size=4)
)
"""Many tokens in common, so that prefixes are hit."""
PICK = st.integers(0, 100)


@dataclass
class Request:
    """One running request and what it has been promised."""

    holding: Holding
    chain: Chain
    tokens: list[int]
    salt: str
    computed: int
    clean: bool = True


class KvMachine(RuleBasedStateMachine):
    """Requests come, compute, fork, end and go wrong."""

    with_prefix_cache = True

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, PAGE_SIZE)
        epoch = PrefixEpoch("revision", KvFormat.FP8, PAGE_SIZE)
        self.prefix = PrefixCache(epoch) if self.with_prefix_cache else None
        self.kv = KvManager(self.pool, Nonces(seed=1), self.prefix)
        self.device = DeviceModel(PAGES, PAGE_SIZE)
        self.running: list[Request] = []
        self.pairs_before: set[tuple[int, int]] = set()
        self.unclean: set[tuple[int, int]] = set()
        self.never_again: set[int] = set()

    def pick(self, number: int) -> Request:
        return self.running[number % len(self.running)]

    def flush(self) -> None:
        """What happens at the start of each step."""
        self.device.apply(self.kv.take_updates())
        everything = self.pool.records()
        assert [tag % 2**32 for tag in everything.tags.tolist()] == self.device.tags
        assert everything.writers.tolist() == self.device.writers

    @rule(tokens=PROMPTS, salt=SALTS)
    def arrive(self, tokens: list[int], salt: str) -> None:
        chain = self.kv.chain(tokens, PrefixKey(salt=salt))
        match = self.kv.match(chain, len(tokens))
        assert match.tokens < len(tokens)
        assert match.tokens == len(match.pairs) * PAGE_SIZE
        assert match.idle == sum(self.pool.book.refs[page] == 0 for page, _ in match.pairs)
        available = self.kv.available_pages
        holding = self.kv.start(match)
        assert self.kv.available_pages == available - match.idle
        self.running.append(Request(holding, chain, tokens, salt, match.tokens))
        assert self.device.holds(holding, salt, tokens, match.tokens), "a hit on somebody else's page"
        assert not self.device.tainted.intersection(holding.pages), "a page that is trusted no more was handed out"

    @precondition(lambda self: self.running)
    @rule(number=PICK, count=st.integers(1, 9), token=st.integers(0, 1), clean=st.integers(0, 3))
    def step(self, number: int, count: int, token: int, clean: int) -> None:
        request = self.pick(number)
        start, end = request.computed, request.computed + count
        request.tokens.extend([token] * max(0, end - len(request.tokens)))
        if not self.extended(request.holding, end):
            return
        self.flush()
        self.device.write(request.holding, request.salt, request.tokens, start, end)
        request.clean = request.clean and clean > 0
        if not request.clean:
            self.unclean.update(list(request.holding.pairs())[start // PAGE_SIZE :])
        self.kv.commit(request.holding, request.chain, start, end, shareable=clean > 0)
        request.computed = end
        assert self.device.holds(request.holding, request.salt, request.tokens, end), "a request reads another's page"
        tainted = self.device.tainted.intersection(request.holding.pages)
        if self.prefix is not None and request.clean and not tainted:
            again = self.kv.match(self.kv.chain(request.tokens, PrefixKey(salt=request.salt)), end + 1)
            assert again.tokens <= end
            assert again.pairs[: request.holding.shared] == tuple(request.holding.pairs())[: request.holding.shared]

    def extended(self, holding: Holding, tokens: int) -> bool:
        before, held = list(holding.pairs()), {page for each in self.running for page in each.holding.pages}
        missing, available = self.kv.missing_pages(holding, tokens), self.kv.available_pages
        if missing > available:
            with pytest.raises(OutOfPages):
                self.kv.extend(holding, tokens)
            assert list(holding.pairs()) == before
            assert self.kv.available_pages == available
            return False
        self.kv.extend(holding, tokens)
        new = list(holding.pairs())[len(before) :]
        assert list(holding.pairs())[: len(before)] == before
        assert len(new) == missing
        assert not held.intersection(page for page, _ in new), "a page in use was given away"
        assert not self.never_again.intersection(page for page, _ in new), "a page that was set aside came back"
        assert not self.pairs_before.intersection(new), "a pair came to life again"
        self.pairs_before.update(new)
        return True

    @precondition(lambda self: self.running)
    @rule(number=PICK, tokens=st.integers(1, 20))
    def get_pages_and_no_step(self, number: int, tokens: int) -> None:
        self.extended(self.pick(number).holding, tokens)

    @precondition(lambda self: any(request.computed for request in self.running))
    @rule(number=PICK, share=st.floats(0.1, 1))
    def fork(self, number: int, share: float) -> None:
        parents = [request for request in self.running if request.computed]
        parent = parents[number % len(parents)]
        tokens = max(1, int(parent.computed * share))
        available = self.kv.available_pages
        if tokens % PAGE_SIZE and not available:
            before = list(parent.holding.pairs())
            with pytest.raises(OutOfPages):
                self.kv.fork(parent.holding, parent.chain, tokens)
            assert list(parent.holding.pairs()) == before
            return
        child = self.kv.fork(parent.holding, parent.chain, tokens)
        own = list(parent.tokens[:tokens])
        assert child.pages[: tokens // PAGE_SIZE] == parent.holding.pages[: tokens // PAGE_SIZE]
        assert child.nonce != parent.holding.nonce
        chain = self.kv.chain(own, PrefixKey(salt=parent.salt))
        self.running.append(Request(child, chain, own, parent.salt, tokens, parent.clean))
        self.pairs_before.update(child.pairs())

    @precondition(lambda self: self.running)
    @rule(number=PICK)
    def end(self, number: int) -> None:
        request = self.pick(number)
        self.running.remove(request)
        self.kv.release(request.holding)
        assert request.holding.pages == []

    @precondition(lambda self: self.running)
    @rule(number=PICK)
    def go_wrong(self, number: int) -> None:
        request = self.pick(number)
        self.running.remove(request)
        pages = list(request.holding.pages)
        self.distrust(pages, lambda: self.kv.set_aside(request.holding))

    @precondition(lambda self: any(request.holding.pages for request in self.running))
    @rule(number=PICK, which=PICK)
    def lose_trust_in_a_page(self, number: int, which: int) -> None:
        holders = [request for request in self.running if request.holding.pages]
        pages = holders[number % len(holders)].holding.pages
        page = pages[which % len(pages)]
        self.distrust([page], lambda: self.kv.drop_pages([page]))

    def distrust(self, pages: list[int], action: Callable[[], None]) -> None:
        """The pages and all that was computed from them leave the cache, and the pages never come back."""
        cached = set() if self.prefix is None else {entry.page for entry in self.prefix.entries()}
        lost = [self.content(page) for page in pages if page in cached]
        self.device.tainted.update(pages)
        self.never_again.update(pages)
        action()
        for entry in self.prefix.entries() if self.prefix is not None else ():
            salt, tokens = self.content(entry.page)
            assert not any(salt == other and tokens[: len(start)] == start for other, start in lost)

    def content(self, page: int) -> Content:
        content = self.device.read(page, PAGE_SIZE - 1)
        assert content is not None
        return content

    @rule()
    def upload(self) -> None:
        self.flush()

    @invariant()
    def the_books_balance(self) -> None:
        kv, book = self.kv, self.pool.book
        kv.check_integrity([request.holding for request in self.running])
        assert kv.check_changed() == []
        assert kv.take_findings() == []
        homes = kv.free_pages + kv.used_pages + kv.retained_pages + kv.set_aside_pages + 1
        assert homes == kv.num_pages
        held = {page for request in self.running for page in request.holding.pages}
        assert len(held) == kv.used_pages
        assert NULL_PAGE not in held
        assert all(book.tag[page] % 2 == 0 for page in held)
        assert all(book.tag[page] % 2 == 1 for page in self.pool._free)

    @invariant()
    def bindings_are_the_sum_of_the_pairs(self) -> None:
        for request in self.running:
            binding = 0
            for logical, (page, tag) in enumerate(request.holding.pairs()):
                binding = add(binding, mix(request.holding.nonce, logical, page, tag))
            assert binding == request.holding.binding

    @invariant()
    def a_page_of_two_requests_is_read_only_and_of_one_salt(self) -> None:
        salts: dict[int, set[str]] = {}
        holders: dict[int, int] = {}
        for request in self.running:
            for page in request.holding.pages:
                salts.setdefault(page, set()).add(request.salt)
                holders[page] = holders.get(page, 0) + 1
        assert all(len(each) == 1 for each in salts.values())
        assert all(self.pool.book.writer[page] == WRITER_SHARED for page, count in holders.items() if count > 1)
        for request in self.running:
            shared = request.holding.pages[: request.holding.shared]
            assert all(self.pool.book.writer[page] == WRITER_SHARED for page in shared)

    @invariant()
    def only_full_clean_pages_are_cached(self) -> None:
        for entry in self.prefix.entries() if self.prefix is not None else ():
            contents = [self.device.read(entry.page, slot) for slot in range(PAGE_SIZE)]
            assert None not in contents
            assert self.device.fill[entry.page] == PAGE_SIZE
            assert entry.page not in self.device.tainted
            assert (entry.page, entry.tag) not in self.unclean


class KvMachineWithoutPrefixCache(KvMachine):
    """The same with forks as the only ones that share."""

    with_prefix_cache = False


def _case(machine: type[KvMachine], examples: int) -> Callable[..., object]:
    machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=40, deadline=None)
    return machine.TestCase


TestKvMachine = _case(KvMachine, 40)
TestKvMachineWithoutPrefixCache = _case(KvMachineWithoutPrefixCache, 8)


@pytest.mark.slow
def test_many_more_interleavings() -> None:
    run_state_machine_as_test(KvMachine, settings=settings(max_examples=400, stateful_step_count=60, deadline=None))
