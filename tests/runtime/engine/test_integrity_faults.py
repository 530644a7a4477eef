"""Planted faults: each is seen in the step that would read it, ends its request, and harms nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from octavo_kernels.catalogue import Operations
from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.engine import KV_INTEGRITY_VIOLATION, KV_POOL_TOO_SMALL
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.schedule import ScheduledRow
from tests.runtime.engine.provenance import OPERATIONS, expected_answer
from tests.runtime.engine.rig import Fault, Rig, rig_of

VICTIM, OTHER = "victim", "other"
PROMPTS = {VICTIM: [11, 12, 13, 14, 15, 16, 17, 18, 19], OTHER: [21, 22, 23, 24, 25, 26, 27, 28, 29]}
ANSWER = 12


def row_of(rows: Sequence[ScheduledRow], request: str) -> int | None:
    return next((row.slot for row in rows if row.request.id == request), None)


@dataclass
class Once:
    """Damages the first batch from step `step` on in which both requests run."""

    damage: Callable[[Batch, int, int], None]
    step: int
    done: bool = False

    def __call__(self, batch: Batch, rows: Sequence[ScheduledRow]) -> None:
        victim, other = row_of(rows, VICTIM), row_of(rows, OTHER)
        if not self.done and batch.step >= self.step and victim is not None and other is not None:
            self.done = True
            self.damage(batch, victim, other)


def foreign_page(batch: Batch, victim: int, other: int) -> None:
    batch.block_table[victim, 0, 0] = batch.block_table[other, 0, 0]


def foreign_pair(batch: Batch, victim: int, other: int) -> None:
    batch.block_table[victim, 1] = batch.block_table[other, 1]


def foreign_row(batch: Batch, victim: int, other: int) -> None:
    batch.block_table[victim] = batch.block_table[other]


def permuted_pages(batch: Batch, victim: int, _other: int) -> None:
    batch.block_table[victim, [0, 1]] = batch.block_table[victim, [1, 0]]


def stale_tag(batch: Batch, victim: int, _other: int) -> None:
    batch.block_table[victim, 0, 1] -= 2


def page_outside_the_pool(batch: Batch, victim: int, _other: int) -> None:
    batch.block_table[victim, 0, 0] = 10_000


def negative_page(batch: Batch, victim: int, _other: int) -> None:
    batch.block_table[victim, 0, 0] = -1


def missing_page(batch: Batch, victim: int, _other: int) -> None:
    batch.block_table[victim, 0] = 0


def binding_of_another(batch: Batch, victim: int, other: int) -> None:
    batch.bindings[victim] = batch.bindings[other]


Damage = Callable[[Batch, int, int], None]

FAULTS: dict[Damage, set[str]] = {
    foreign_page: {"tag", "binding"},
    foreign_pair: {"binding"},
    foreign_row: {"binding"},
    permuted_pages: {"logical", "binding"},
    stale_tag: {"tag", "binding"},
    page_outside_the_pool: {"range"},
    negative_page: {"range"},
    missing_page: {"range"},
    binding_of_another: {"binding"},
}


def run_with(fault: Fault, mode: IntegrityMode = IntegrityMode.ENFORCE) -> Rig:
    rig = rig_of(pages=40, tokens_per_step=40, mode=mode)
    rig.executor.fault = fault
    for name, prompt in PROMPTS.items():
        rig.submit(name, prompt, ANSWER)
    rig.run()
    return rig


@pytest.mark.parametrize("damage", FAULTS, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("step", [3, 6])
def test_a_fault_while_decoding_ends_the_request_before_a_wrong_token_leaves(damage: Damage, step: int) -> None:
    rig = run_with(Once(damage, step))
    assert [(v.step, v.request) for v in rig.violations] == [(step, VICTIM)]
    assert set(rig.violations[0].reasons) & FAULTS[damage]
    assert rig.tokens[VICTIM] == expected_answer(PROMPTS[VICTIM], ANSWER)[: step - 1]
    assert rig.failed[VICTIM].code == KV_INTEGRITY_VIOLATION
    assert rig.failed[VICTIM].retryable
    assert rig.tokens[OTHER] == expected_answer(PROMPTS[OTHER], ANSWER)


@pytest.mark.parametrize("damage", FAULTS, ids=lambda damage: damage.__name__)
def test_a_fault_before_the_first_token_is_recomputed_once(damage: Damage) -> None:
    rig = run_with(Once(damage, step=1))
    assert [v.request for v in rig.violations] == [VICTIM]
    assert not rig.failed
    assert rig.tokens == {name: expected_answer(prompt, ANSWER) for name, prompt in PROMPTS.items()}
    assert rig.engine.stats().recomputed == 1


def test_a_second_fault_before_the_first_token_ends_the_request() -> None:
    def always(batch: Batch, rows: Sequence[ScheduledRow]) -> None:
        victim = row_of(rows, VICTIM)
        if victim is not None:
            batch.block_table[victim, 0, 1] += 2

    rig = run_with(always)
    assert (len(rig.violations), rig.failed[VICTIM].code) == (2, KV_INTEGRITY_VIOLATION)
    assert VICTIM not in rig.tokens
    assert rig.tokens[OTHER] == expected_answer(PROMPTS[OTHER], ANSWER)


def test_pages_of_a_violated_request_are_set_aside_and_never_reused() -> None:
    rig = run_with(Once(foreign_page, step=3))
    stats = rig.engine.stats()
    assert stats.kv_pages_set_aside == 3
    assert (stats.kv_tokens_used, stats.kv_pages_free + stats.kv_tokens_retained // 4) == (0, 40 - 3)
    assert stats.integrity_cancelled == 1
    aside = set(rig.violations[0].pages)
    assert len(aside) == 3
    rig.submit("all", [31] * (37 * 4 - 2), 2)
    for _ in range(4):
        rig.step()
    (holding,) = rig.scheduler.holdings()
    assert len(holding.pages) == 37
    assert not aside & set(holding.pages)


def test_a_store_into_a_foreign_page_is_not_done() -> None:
    """The victim's last page becomes the other's: its write must not land there."""

    def last_page(batch: Batch, victim: int, other: int) -> None:
        last = (int(batch.context_lens[victim]) - 1) // 4
        batch.block_table[victim, last] = batch.block_table[other, last]

    rig = run_with(Once(last_page, step=4))
    assert "writer" in rig.violations[0].reasons
    assert rig.tokens[OTHER] == expected_answer(PROMPTS[OTHER], ANSWER)


def nothing(**_arguments: object) -> None:
    """A kernel that was not launched."""


def conclude_another_step(**arguments: object) -> None:
    assert isinstance(arguments["step"], int)
    OPERATIONS.conclude(**{**arguments, "step": arguments["step"] + 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "operations",
    [
        replace(OPERATIONS, check_rows=nothing),
        replace(OPERATIONS, check_rows=nothing, conclude=nothing),
        replace(OPERATIONS, conclude=nothing),
        replace(OPERATIONS, conclude=conclude_another_step),
    ],
    ids=["no check", "no check at all", "no conclusion", "the conclusion of another step"],
)
def test_a_check_that_does_not_speak_is_a_violation(operations: Operations) -> None:
    rig = rig_of(operations=operations)
    rig.submit("a", [1, 2, 3], 4)
    rig.run()
    assert "a" in rig.failed
    assert "a" not in rig.tokens
    assert rig.violations[0].reasons == ("stale_verdict",)


def test_report_mode_counts_and_delivers() -> None:
    rig = run_with(Once(binding_of_another, step=3), IntegrityMode.REPORT)
    assert rig.engine.stats().integrity_violations == {"binding": 1}
    assert not rig.failed
    assert rig.tokens == {name: expected_answer(prompt, ANSWER) for name, prompt in PROMPTS.items()}


def test_report_mode_lets_a_wrong_token_out_which_is_why_it_is_not_the_default() -> None:
    rig = run_with(Once(foreign_row, step=3), IntegrityMode.REPORT)
    assert rig.tokens[VICTIM] != expected_answer(PROMPTS[VICTIM], ANSWER)


def test_off_mode_checks_nothing() -> None:
    rig = run_with(Once(binding_of_another, step=3), IntegrityMode.OFF)
    assert rig.engine.stats().integrity_checks == 0
    assert not rig.violations
    assert rig.tokens == {name: expected_answer(prompt, ANSWER) for name, prompt in PROMPTS.items()}


def test_every_row_is_checked_in_every_step() -> None:
    rig = rig_of(tokens_per_step=4)
    rig.submit("a", [1] * 9, 2)
    rig.run()
    assert rig.engine.stats().integrity_checks == 4, "three chunks of the prompt, one token"


def another_binding(batch: Batch, _rows: Sequence[ScheduledRow]) -> None:
    batch.bindings.add_(1)


def test_a_request_that_no_longer_fits_after_violations_fails_with_its_numbers() -> None:
    rig = rig_of(pages=4, tokens_per_step=40)
    rig.submit("a", [1] * 9, 5)
    rig.step()
    rig.executor.fault = another_binding
    rig.step()
    rig.executor.fault = None
    rig.submit("b", [2] * 9, 5)
    rig.run()
    assert rig.failed["b"].code == KV_POOL_TOO_SMALL
    assert "9 tokens need 3 KV pages; 1 are left, 1 of them can be had now, 3 are set aside" in rig.failed["b"].message


def test_without_a_fault_there_is_no_violation() -> None:
    rig = run_with(lambda _batch, _rows: None)
    assert not rig.violations
    assert rig.engine.stats().kv_pages_set_aside == 0
