"""Planted faults under mixed load are all found in time and no wrong token leaves; and the campaign can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo_kernels.formats.binding import mix_tensor
from octavo_kernels.formats.verdict import Finding, word_of
from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob, Executor, Outcome
from octavo_runtime.engine.fault_kinds import FaultKind
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.kv.updates import DeviceUpdates
from tests.runtime.engine.campaign import PAGE_SIZE, CampaignResult, run_campaign, run_clean
from tests.runtime.engine.provenance import OPERATIONS


def assert_every_fault_is_found(result: CampaignResult, faults: int) -> None:
    assert {kind.kind: (kind.planted, kind.missed) for kind in result.by_kind} == dict.fromkeys(FaultKind, (faults, ()))
    assert result.detected == faults * len(FaultKind)
    assert (result.wrong_tokens_out, result.false_positives, result.harmed) == (0, 0, ())
    assert result.green


def test_every_planted_fault_is_found_before_a_wrong_token_leaves() -> None:
    assert_every_fault_is_found(run_campaign(3, seed=1), 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FaultKind)
def test_two_hundred_faults_of_each_kind(kind: FaultKind) -> None:
    result = run_campaign(200, seed=2, kinds=(kind,))
    assert (result.planted, result.detected) == (200, 200)
    assert result.green
    assert min(result.forks, result.prefix_hit_tokens) > 0
    assert result.preemptions or kind is FaultKind.CHECK_SKIPPED  # it ends everybody before pages run out


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    result = run_clean(200, seed=3, answers=True)
    assert (result.false_positives, result.wrong_tokens_out) == (0, 0)
    assert min(result.requests, result.preemptions, result.forks, result.prefix_hit_tokens) > 0


def test_the_fast_clean_run_meets_everything_that_the_other_does() -> None:
    result = run_clean(400, seed=4)
    assert (result.steps, result.false_positives) == (400, 0)
    assert min(result.requests, result.preemptions, result.forks, result.prefix_hit_tokens) > 0


class NeverWrong:
    """An engine that ignores verdicts, as it sees it: every row is clean."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    @property
    def checks(self) -> int:
        return self._inner.checks

    def execute(self, step: PreparedStep, updates: DeviceUpdates, digests: DigestJob = NO_DIGESTS) -> Outcome:
        outcome = self._inner.execute(step, updates, digests)
        return replace(outcome, verdicts=[step.host.step] * len(outcome.verdicts))

    def self_check(self, step: int) -> int:
        return self._inner.self_check(step)


def check_without_binding(*, block_table: torch.Tensor, **inputs: Any) -> None:
    """The check as it would be without bindings: whatever the table says is what the allocator meant."""
    pages, tags = block_table.unbind(-1)
    logical = torch.arange(block_table.shape[1])
    terms = mix_tensor(inputs["nonces"][:, None], logical, pages, tags)
    inputs["bindings"] = torch.where((pages != 0) | (tags != 0), terms, 0).sum(dim=1)
    OPERATIONS.check_rows(block_table=block_table, **inputs)


def write_without_refusal(key: torch.Tensor, value: torch.Tensor, **inputs: Any) -> None:
    """The KV write as it would be if it trusted the block table; it only knows the NULL page."""
    in_null_page = inputs["block_table"][inputs["token_rows"], inputs["positions"] // PAGE_SIZE, 0] == 0
    inputs["verdict"][inputs["token_rows"][in_null_page]] |= word_of(Finding.RANGE)
    rows, positions, table = inputs["token_rows"], inputs["positions"], inputs["block_table"]
    pages = table[rows, positions // PAGE_SIZE, 0].long()
    inputs["k_pages"][pages, positions % PAGE_SIZE] = key.to(inputs["k_pages"].dtype)
    inputs["v_pages"][pages, positions % PAGE_SIZE] = value.to(inputs["v_pages"].dtype)
    places = inputs["page_places"]
    places.scatter_reduce_(
        0, pages, (places[pages] & ~255) | (positions % PAGE_SIZE + 1).to(torch.int32), reduce="amax"
    )


def with_ignored_verdicts(kind: FaultKind) -> CampaignResult:
    return run_campaign(8, seed=5, kinds=[kind], spoil=NeverWrong)


def with_unchecked_bindings(kind: FaultKind) -> CampaignResult:
    return run_campaign(40, seed=5, kinds=[kind], operations=replace(OPERATIONS, check_rows=check_without_binding))


def with_obedient_writes(kind: FaultKind) -> CampaignResult:
    return run_campaign(8, seed=5, kinds=[kind], operations=replace(OPERATIONS, kv_write=write_without_refusal))


@pytest.mark.parametrize(
    ("defect", "kind"),
    [
        (with_ignored_verdicts, FaultKind.WRONG_ROW),
        (with_ignored_verdicts, FaultKind.CHECK_SKIPPED),
        (with_unchecked_bindings, FaultKind.WRONG_PAIR),
        (with_obedient_writes, FaultKind.STALE_WRITE),
    ],
)
def test_the_campaign_sees_a_defect(defect: Callable[[FaultKind], CampaignResult], kind: FaultKind) -> None:
    result = defect(kind)
    assert not result.green
    assert result.detected < result.planted or result.wrong_tokens_out > 0
