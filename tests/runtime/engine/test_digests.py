"""Sampled digests: pages that are full are remembered and looked at again, and a change is seen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from octavo_runtime.engine import digests
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.engine.schedule import ScheduledRow
from tests.runtime.engine.test_batch_builder import PAGE_SIZE, request_of, row_of

LAYERS = 2


def digests_of(pages_per_step: int = 1) -> PageDigests:
    return PageDigests(pages_per_step, LAYERS, PAGE_SIZE)


def decoding(pages: int = 3) -> EngineRequest:
    """Its last page is not full."""
    tokens = pages * PAGE_SIZE - 1
    return request_of(1, range(tokens + 1), pages=pages, computed=tokens)


def rows_of(request: EngineRequest) -> list[ScheduledRow]:
    return [row_of(request, 1)]


def always(_page: int, _tag: int) -> bool:
    return True


def look(
    digests: PageDigests, request: EngineRequest, content: int = 0, is_readable: Callable[[int, int], bool] = always
) -> list[int]:
    """One step; every page has the digest `page * 7 + layer + content`."""
    job = digests.job(rows_of(request), is_readable)
    return digests.took([page * 7 + layer + content for page, layer in zip(job.pages, job.layers, strict=True)])


def test_only_full_pages_are_looked_at() -> None:
    sampled, request = digests_of(), decoding(pages=3)
    seen = set()
    for _ in range(60):
        seen |= set(sampled.job(rows_of(request), always).pages.tolist())
        sampled.took([0])
    assert seen == {100, 101}


def test_a_request_without_a_full_page_and_a_budget_of_none_ask_for_nothing() -> None:
    assert len(digests_of().job(rows_of(decoding(pages=1)), always)) == 0
    assert len(digests_of(0).job(rows_of(decoding()), always)) == 0


def test_pages_that_stay_as_they_are_are_compared_and_found_equal() -> None:
    sampled, request = digests_of(), decoding()
    assert [look(sampled, request) for _ in range(20)] == [[]] * 20
    assert sampled.compared >= 8


def test_a_page_that_changed_is_found_at_the_next_look() -> None:
    sampled, request = digests_of(), decoding(pages=2)
    for _ in range(20):
        assert not look(sampled, request)
    changed = look(sampled, request, content=1) or look(sampled, request, content=1)
    assert changed == [100]


def test_the_next_life_of_a_page_is_not_compared_with_the_last_one() -> None:
    sampled, request = digests_of(), decoding(pages=2)
    for _ in range(20):
        look(sampled, request)
    assert request.holding is not None
    request.holding.tags[0] += 2
    compared, now = sampled.compared, request.holding.tags[0]
    assert not look(sampled, request, content=5, is_readable=lambda _page, tag: tag == now)
    assert not look(sampled, request, content=5, is_readable=lambda _page, tag: tag == now)
    assert sampled.compared <= compared + 1


def test_a_page_that_only_the_prefix_cache_keeps_is_still_looked_at() -> None:
    sampled, request = digests_of(), decoding(pages=2)
    for _ in range(20):
        look(sampled, request)
    request.holding = None
    assert any(look(sampled, request, content=9) for _ in range(2))


def test_pages_whose_life_is_over_are_forgotten_before_those_that_can_still_be_compared() -> None:
    sampled, dead, living = digests_of(), decoding(pages=9), decoding(pages=2)
    assert living.holding is not None
    living.holding.pages[:] = [900, 901]
    for _ in range(60):
        look(sampled, dead)
    for _ in range(20):
        look(sampled, living)
    compared = sampled.compared
    for _ in range(10):
        look(sampled, living, is_readable=lambda page, _tag: page >= 900)
    assert sampled.compared >= compared + 5
    assert {place.page for place in sampled._known} == {900}


def test_what_is_remembered_keeps_no_request_alive() -> None:
    sampled, request = digests_of(), decoding()
    for _ in range(20):
        look(sampled, request)
    gone = weakref.ref(request)
    del request
    gc.collect()
    assert gone() is None


def test_each_place_is_asked_for_once_in_a_step() -> None:
    sampled, request = digests_of(8), decoding(pages=2)
    job = sampled.job(rows_of(request), always)
    assert len(set(zip(job.pages.tolist(), job.layers, strict=True))) == len(job) <= LAYERS


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "REMEMBERED", 4)
    sampled, request = digests_of(), decoding(pages=40)
    for _ in range(200):
        look(sampled, request)
    assert len(sampled._known) <= 4


def test_a_long_interval_looks_less_often() -> None:
    sampled, request = PageDigests(1, LAYERS, PAGE_SIZE, interval=4), decoding(pages=3)
    asked = [len(sampled.job(rows_of(request), always)) for _ in range(12)]
    assert asked == [0, 0, 0, 1] * 3
