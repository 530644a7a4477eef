"""What each layer of the defence finds, how it is recorded, and whom it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.engine import KV_INTEGRITY_VIOLATION
from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob, Outcome
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.schedule import ScheduledRow
from octavo_runtime.kv.updates import DeviceUpdates
from tests.runtime.engine.provenance import OPERATIONS, expected_answer
from tests.runtime.engine.rig import START_OF_TIME, FaultyExecutor, Rig, rig_of

PROMPT = list(range(1, 19))


def pages_of(rig: Rig, request: str) -> list[int]:
    return next(list(r.holding.pages) for r in rig.scheduler.running if r.id == request and r.holding is not None)


def never(*_arguments: object, **_keywords: object) -> Any:
    raise AssertionError("called in mode off")


def another_binding(batch: Batch, _rows: Sequence[ScheduledRow]) -> None:
    batch.bindings[0] += 1


def test_a_record_says_when_where_what_and_what_followed() -> None:
    rig = rig_of(tokens_per_step=40)
    rig.submit("a", PROMPT, 5)
    rig.executor.fault = another_binding
    rig.clock.now = 5.0
    rig.step()
    rig.executor.fault = None
    rig.step()
    rig.executor.fault = another_binding
    rig.clock.now = 9.0
    rig.step()
    first, second = rig.violations
    assert (first.id, first.time, first.step) == (1, START_OF_TIME + 5.0, 1)
    assert (second.id, second.time, second.step) == (2, START_OF_TIME + 9.0, 3)
    assert (first.site, first.reasons, first.request) == ("table", ("binding",), "a")
    assert (first.action, second.action) == ("recomputed", "cancelled")
    assert len(first.pages) == len(second.pages) == 5
    assert not set(first.pages) & set(second.pages)


def test_a_violation_of_one_answer_ends_all_of_them_once() -> None:
    rig = rig_of(tokens_per_step=40)
    rig.submit("a", PROMPT, 9, n=3)
    rig.submit("b", [30, 31], 9)
    for _ in range(3):
        rig.step()
    rig.executor.fault = lambda batch, rows: batch.bindings[1].add_(1)
    result = rig.step()
    rig.executor.fault = None
    assert [failure.request for failure in result.failures] == ["a"]
    assert [(v.request, v.action) for v in result.violations] == [("a", "cancelled")]
    assert {token.request for token in result.tokens} == {"a", "b"} - {"a"}
    rig.run()
    assert rig.tokens["b"] == expected_answer([30, 31], 9)
    assert rig.engine.stats().kv_tokens_used == 0


def test_a_live_page_in_the_free_list_ends_the_request_that_holds_it_before_the_step() -> None:
    rig = rig_of(tokens_per_step=40)
    rig.submit("a", PROMPT, 9)
    rig.submit("b", [30, 31], 9)
    rig.step()
    steps = rig.model.forwards
    rig.pool._free.append(pages_of(rig, "a")[-1])
    rig.step()
    assert [(v.site, v.request, v.action) for v in rig.violations] == [("host", "a", "cancelled")]
    assert rig.failed["a"].code == KV_INTEGRITY_VIOLATION
    assert rig.model.forwards == steps + 1
    rig.run()
    assert rig.tokens == {"a": expected_answer(PROMPT, 1), "b": expected_answer([30, 31], 9)}


def test_a_page_of_nobody_that_the_books_are_wrong_about_is_counted_and_listed() -> None:
    rig = rig_of(tokens_per_step=40)
    rig.submit("b", [30, 31], 9)
    rig.step()
    free = rig.pool._free[-1]
    rig.pool._free.append(free)
    rig.run()
    assert [(v.site, v.request, v.pages, v.action) for v in rig.violations] == [("host", "", (free,), "none")]
    assert rig.tokens == {"b": expected_answer([30, 31], 9)}


def test_a_page_that_changed_ends_every_request_that_holds_it_and_leaves_the_prefix_cache() -> None:
    rig = rig_of(tokens_per_step=40, digest_pages=8)
    for name in "ab":
        rig.submit(name, PROMPT, 30)
        for _ in range(12):
            rig.step()
    page = pages_of(rig, "a")[1]
    assert page in pages_of(rig, "b")
    rig.cache.layers[0].v[page, 2, 0, 5] += 1
    while not rig.violations:
        rig.step()
    assert {(v.site, v.reasons, v.request, v.pages) for v in rig.violations} == {
        ("digest", ("digest",), "a", (page,)),
        ("digest", ("digest",), "b", (page,)),
    }
    assert rig.failed.keys() == {"a", "b"}
    rig.submit("c", PROMPT, 5)
    rig.run()
    assert rig.tokens["c"] == expected_answer(PROMPT, 5)
    assert rig.engine.stats().digests_checked > 0
    assert rig.engine.stats().kv_pages_set_aside > 0


@pytest.mark.parametrize("mode", [IntegrityMode.ENFORCE, IntegrityMode.REPORT])
def test_a_page_that_changed_when_only_the_prefix_cache_kept_it_is_read_by_nobody(mode: IntegrityMode) -> None:
    rig = rig_of(mode=mode, tokens_per_step=40, digest_pages=8)
    rig.submit("a", PROMPT, 30)
    for _ in range(12):
        rig.step()
    page = pages_of(rig, "a")[1]
    rig.engine.cancel("a")
    rig.cache.layers[0].v[page, 2, 0, 5] += 1
    rig.submit("b", [30, 31, 32, 33, 34], 30)
    while not rig.violations:
        rig.step()
    assert [(v.site, v.request, v.pages) for v in rig.violations] == [("digest", "", (page,))]
    rig.submit("c", PROMPT, 5)
    rig.step()
    assert page not in pages_of(rig, "c")
    rig.run()
    assert rig.tokens["c"] == expected_answer(PROMPT, 5)
    assert rig.tokens["b"] == expected_answer([30, 31, 32, 33, 34], 30)


def test_pages_that_stay_as_they_are_are_never_found_changed() -> None:
    rig = rig_of(pages=30, tokens_per_step=40, digest_pages=4)
    for name in "abcdef":
        rig.submit(name, PROMPT[: 7 + ord(name) % 7], 30, n=2)
    rig.run()
    assert rig.engine.stats().digests_checked > 50
    assert rig.engine.stats().preemptions > 0
    assert not rig.violations


def test_a_page_that_was_not_copied_right_makes_its_fork_start_again() -> None:
    calls: list[int] = []

    def wrong_after_the_first_copy(**arguments: Any) -> torch.Tensor:
        calls.append(len(calls))
        return OPERATIONS.digest_pages(**arguments) + (1 if len(calls) == 2 else 0)

    operations = replace(OPERATIONS, digest_pages=wrong_after_the_first_copy)
    rig = rig_of(tokens_per_step=40, digest_pages=0, operations=operations)
    rig.submit("a", PROMPT, 5, n=2)
    rig.run()
    assert [(v.site, v.request, v.action) for v in rig.violations] == [("digest", "a", "recomputed")]
    assert rig.answers == {("a", index): expected_answer(PROMPT, 5) for index in range(2)}
    assert len(calls) == 4


def test_a_fork_that_copied_a_page_which_the_same_step_found_bad_starts_again_too() -> None:
    rig = rig_of(tokens_per_step=len(PROMPT) - 1)
    damaged: list[int] = []

    def overwritten(_batch: Batch, rows: Sequence[ScheduledRow]) -> None:
        first = next(row for row in rows if row.request.index == 0)
        if len(rows) == 2 and first.start == len(PROMPT) - 1 and first.request.holding is not None:
            page = first.request.holding.pages[-1]
            rig.cache.records.tag[page] += 2
            rig.cache.layers[0].k[page] = rig.cache.layers[0].k[page - 1]
            rig.cache.layers[0].v[page] = rig.cache.layers[0].v[page - 1]
            damaged.append(page)
            rig.executor.fault = None

    rig.executor.fault = overwritten
    rig.submit("a", PROMPT, 5, n=2)
    rig.run()
    assert len(damaged) == 1
    assert [(v.site, v.request, v.action) for v in rig.violations] == [("table", "a", "recomputed")]
    assert rig.answers == {("a", index): expected_answer(PROMPT, 5) for index in range(2)}


def test_what_is_found_when_the_last_request_ends_is_told_before_the_engine_is_idle() -> None:
    rig = rig_of(tokens_per_step=40, prefix_cache=False)
    rig.submit("a", PROMPT, 5)
    rig.engine.step()
    page = pages_of(rig, "a")[0]
    rig.pool.book.tag[page] += 2
    rig.engine.cancel("a")
    assert not rig.engine.idle
    assert [(v.site, v.reasons, v.pages) for v in rig.engine.step().violations] == [("host", ("host_pair",), (page,))]
    assert rig.engine.idle


def test_ranks_that_disagree_are_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def disagreeing(
        self: FaultyExecutor, step: PreparedStep, updates: DeviceUpdates, digests: DigestJob = NO_DIGESTS
    ) -> Outcome:
        outcome = execute(self, step, updates, digests)
        return replace(outcome, disagreements=(1,)) if step.host.step == 4 else outcome

    execute = FaultyExecutor.execute
    monkeypatch.setattr(FaultyExecutor, "execute", disagreeing)
    rig = rig_of(tokens_per_step=40)
    rig.submit("a", [1, 2], 9)
    rig.submit("b", [3, 4], 9)
    rig.run()
    assert [(v.site, v.reasons, v.request) for v in rig.violations] == [("rank", ("rank_mismatch",), "b")]
    assert rig.tokens == {"a": expected_answer([1, 2], 9), "b": expected_answer([3, 4], 3)}


def test_a_padding_row_over_a_real_page_is_a_violation_of_nobody() -> None:
    def misdirected(batch: Batch, rows: Sequence[ScheduledRow]) -> None:
        if batch.step == 5:
            batch.block_table[3, 0] = batch.block_table[0, 0]

    rig = rig_of(pad_decode_to=(4,))
    rig.executor.fault = misdirected
    rig.submit("a", [1, 2], 9)
    rig.run()
    assert [(v.site, v.request, v.action, v.step) for v in rig.violations] == [("write", "", "none", 5)]
    assert "binding" in rig.violations[0].reasons
    assert rig.tokens == {"a": expected_answer([1, 2], 9)}


def test_a_padding_row_whose_store_was_taken_is_a_violation() -> None:
    rig = rig_of(pad_decode_to=(4,), operations=replace(OPERATIONS, kv_write=OPERATIONS.kv_write))
    rig.executor.fault = lambda batch, rows: batch.token_rows.clamp_(max=0) if len(batch.token_rows) == 4 else None
    rig.submit("a", [1, 2], 9)
    rig.run()
    assert {v.site for v in rig.violations if not v.request} == {"write"}
    assert {v.reasons for v in rig.violations if not v.request} == {("padding",)}


def test_a_row_that_was_found_damaged_is_written_anew() -> None:
    def damaged(batch: Batch, _rows: Sequence[ScheduledRow]) -> None:
        if batch.step == 3:
            batch.block_table[0, 0] = 0

    rig = rig_of(mode=IntegrityMode.REPORT, tokens_per_step=40)
    rig.executor.fault = damaged
    rig.submit("a", PROMPT, 9)
    rig.run()
    assert [v.step for v in rig.violations] == [3]


def test_what_was_reported_only_is_never_shared() -> None:
    rig = rig_of(mode=IntegrityMode.REPORT, tokens_per_step=40)
    rig.executor.fault = another_binding
    rig.submit("a", PROMPT, 1)
    rig.run()
    rig.executor.fault = None
    rig.submit("b", PROMPT, 1)
    rig.run()
    assert [(v.request, v.action) for v in rig.violations] == [("a", "reported")]
    assert rig.engine.stats().prefix_hit_tokens == 0
    assert rig.tokens["b"] == expected_answer(PROMPT, 1)


def test_a_check_that_stops_speaking_is_a_stall_until_it_speaks_again() -> None:
    silent = False

    def conclude(**arguments: Any) -> None:
        if not silent:
            OPERATIONS.conclude(**arguments)

    rig = rig_of(operations=replace(OPERATIONS, conclude=conclude))
    rig.engine.self_check()
    assert not rig.engine.stats().integrity_stalled
    silent = True
    rig.engine.self_check()
    assert rig.engine.stats().integrity_stalled, "seen without any request"
    silent = False
    rig.submit("a", [1, 2], 3)
    rig.step()
    assert not rig.engine.stats().integrity_stalled
    silent = True
    rig.step()
    assert rig.engine.stats().integrity_stalled
    silent = False
    rig.engine.self_check()
    assert not rig.engine.stats().integrity_stalled


def test_off_runs_no_check_no_digest_and_looks_at_no_books() -> None:
    operations = replace(OPERATIONS, check_rows=never, conclude=never, digest_pages=never)
    rig = rig_of(mode=IntegrityMode.OFF, operations=operations, tokens_per_step=40)
    rig.kv.check_changed = never  # type: ignore[method-assign]
    rig.submit("a", PROMPT, 9)
    rig.submit("b", PROMPT[:8], 9, n=2)
    rig.run()
    rig.engine.self_check()
    assert rig.tokens == {"a": expected_answer(PROMPT, 9), "b": expected_answer(PROMPT[:8], 9)}
    stats = rig.engine.stats()
    assert (stats.integrity_checks, stats.digests_checked, stats.integrity_stalled) == (0, 0, False)


def test_off_remembers_no_findings_that_nobody_will_read() -> None:
    rig = rig_of(mode=IntegrityMode.OFF, tokens_per_step=40, prefix_cache=False)
    rig.submit("a", PROMPT, 9)
    rig.engine.step()
    rig.pool.book.writer[pages_of(rig, "a")[-1]] = 12345
    while not rig.engine.idle:
        rig.engine.step()
        assert len(rig.pool._findings) <= 1


def test_an_audit_is_counted() -> None:
    rig = rig_of()
    rig.engine.audit()
    assert rig.engine.stats().audits == 1
