"""The injector plants a fault only where there is a victim, says so, and leaves no trace when it does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_runtime.engine.fault_kinds import FaultKind, FaultPlan
from octavo_runtime.engine.fault_rows import Entry, TableEdit
from octavo_runtime.engine.faults import FaultInjector
from octavo_runtime.engine.messages import Submit
from octavo_runtime.kv.pages import FIRST_FREE_TAG
from octavo_runtime.kv.records import PageRecords
from octavo_runtime.kv.updates import RecordUpdates
from tests.runtime.engine.campaign import PAGE_SIZE, Run
from tests.runtime.engine.provenance import CPU, OPERATIONS, ProvenanceModel
from tests.runtime.engine.traffic import GREEDY, Traffic, TrafficShape


def faulty_run(kind: FaultKind, shape: TrafficShape, rate: float = 1.0) -> tuple[Run, FaultInjector]:
    injector = FaultInjector([FaultPlan(kind, rate)], seed=1)
    operations = injector.instrument(OPERATIONS)
    return Run.of(ProvenanceModel(operations=operations), operations, Traffic(1, shape), injector=injector), injector


@pytest.mark.parametrize("kind", [FaultKind.WRONG_ROW, FaultKind.TWO_OWNERS])
def test_a_fault_that_needs_another_request_is_not_planted_when_there_is_none(kind: FaultKind) -> None:
    run, injector = faulty_run(kind, TrafficShape(arrival=0.0))
    run.engine.submit(Submit("alone", [1] * 30, 12, GREEDY, []))
    for _ in range(20):
        run.step()
    assert run.engine.idle
    assert injector.count == 0


def test_an_inactive_injector_plants_nothing() -> None:
    run, injector = faulty_run(FaultKind.WRONG_PAGE, TrafficShape())
    injector.active = False
    results = [run.step()[1] for _ in range(40)]
    assert injector.count == 0
    assert not any(result.violations for result in results)


def test_a_rate_is_the_share_of_steps_with_a_victim() -> None:
    run, injector = faulty_run(FaultKind.PADDING_WRITE, TrafficShape(open_limit=3), rate=0.5)
    padded = 0
    for _ in range(200):
        run.step()
        padded += len(run.executor.ran) > 0
    assert 0 < injector.count < padded


def test_the_same_seed_plants_the_same_faults() -> None:
    first, second = (faulty_run(FaultKind.STALE_WRITE, TrafficShape(), rate=0.2) for _ in range(2))
    for run in (first[0], second[0]):
        for _ in range(60):
            run.step()
    assert first[1].planted
    assert first[1].planted == second[1].planted


def test_a_planted_fault_says_what_it_did() -> None:
    run, injector = faulty_run(FaultKind.WRONG_PAGE, TrafficShape())
    while not injector.planted:
        run.step()
    fault = injector.planted[0]
    assert fault.kind is FaultKind.WRONG_PAGE
    assert fault.requests[0] in run.executor.ran
    assert f"became page {fault.pages[0]}" in fault.detail


def test_a_check_that_was_left_out_costs_no_pages() -> None:
    """It says nothing against them; else one failed launch would cost every page in use."""
    run, injector = faulty_run(FaultKind.CHECK_SKIPPED, TrafficShape(), rate=0.3)
    failures = [failure for _ in range(30) for failure in run.step()[1].failures]
    assert injector.count > 0
    assert failures
    assert run.engine.stats().kv_pages_set_aside == 0


def test_a_damaged_table_gets_its_entries_back() -> None:
    table = torch.arange(24, dtype=torch.int32).reshape(3, 4, 2)
    before = table.clone()
    edit = TableEdit((Entry(1, 2, -1, 2**32 - 2), Entry(2, 0, 7, 8)))
    edit.apply(table)
    assert table[1, 2].tolist() == [-1, -2]
    assert table[2, 0].tolist() == [7, 8]
    edit.undo()
    assert torch.equal(table, before)


def test_a_damaged_copy_leaves_the_table_alone() -> None:
    table = torch.zeros(2, 2, 2, dtype=torch.int32)
    assert TableEdit((Entry(0, 1, 5, 6),)).copy_of(table)[0, 1].tolist() == [5, 6]
    assert not table.any()


def test_the_host_cannot_raise_the_fill_mark_of_a_page_in_use() -> None:
    """What an early publication would do: the device goes by what was stored."""
    records = PageRecords.blank(num_pages=4, device=CPU)

    def tell(*values: int) -> None:
        page, tag, place, writer = (np.array([value], np.int32) for value in (2, *values))
        records.apply(RecordUpdates(page, tag, place, writer))

    tell(FIRST_FREE_TAG + 1, 0, 77)
    records.place[2] = 1
    tell(FIRST_FREE_TAG + 1, PAGE_SIZE, -1)
    assert (records.place[2].item(), records.writer[2].item()) == (1, -1)
    tell(FIRST_FREE_TAG + 2, 0, 0)
    assert records.place[2].item() == 0
