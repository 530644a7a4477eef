"""The planner: what fits, what does not and by how much, and the smallest change that would help."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.api.hardware import CpuFacts
from octavo_operator.planning.plan import NoPlan, Plan, PlanRequest
from octavo_operator.planning.planner import plan
from octavo_runtime.contract.footprint import tokens_in
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import Conversion, KvFormat, PrecisionRequest, WeightFormat
from tests.operator.samples import CPU, DENSE, GIB, H100, H200, KIMI_K2, QWEN_30B, TINY, gpu

BF16 = PrecisionRequest(weights=WeightFormat.BF16, kv=KvFormat.BF16)


def planned(**changes: Any) -> Plan:
    outcome = plan(PlanRequest(**{"facts": TINY, "hardware": CPU, **changes}))
    assert isinstance(outcome, Plan), outcome
    return outcome


def refused(**changes: Any) -> NoPlan:
    outcome = plan(PlanRequest(**{"facts": TINY, "hardware": CPU, **changes}))
    assert isinstance(outcome, NoPlan), outcome
    return outcome


def test_a_tiny_model_on_a_cpu_gets_int4_experts_an_fp8_cache_and_its_whole_context() -> None:
    result = planned()
    assert result.precision.summary == "INT4, KV FP8"
    assert result.ranks == 1
    assert result.max_model_len == 2048
    assert result.max_concurrent_requests == 16
    assert result.kv_tokens >= 16 * 1024
    assert result.memory.unused == 0, "a CPU pod asks for what it needs"


def test_the_fp8_cache_of_the_same_tokens_takes_half_the_bytes() -> None:
    fp8 = planned(precision=PrecisionRequest(kv=KvFormat.FP8))
    bf16 = planned(precision=PrecisionRequest(kv=KvFormat.BF16))
    assert fp8.kv_tokens == bf16.kv_tokens
    assert bf16.memory.kv_cache / fp8.memory.kv_cache == pytest.approx(2, rel=0.01)


def test_a_long_context_on_a_cpu_is_cut_to_8192_unless_asked_for() -> None:
    assert planned(facts=QWEN_30B).max_model_len == 8192
    assert planned(facts=QWEN_30B, max_model_len=32_768).max_model_len == 32_768


def test_a_cpu_limit_reduces_the_cache_before_it_refuses() -> None:
    free = planned()
    tight = planned(memory_limit_bytes=free.memory.total - free.memory.kv_cache // 2)
    assert tight.kv_tokens < free.kv_tokens
    assert tight.memory.needed <= free.memory.total - free.memory.kv_cache // 2
    assert tight.max_concurrent_requests < 16


def test_a_node_that_is_too_small_is_named_with_the_missing_bytes() -> None:
    reason = refused(facts=QWEN_30B, hardware=CpuFacts(memory_mib=8 * 1024, origin="the largest of 2 matching nodes"))
    assert reason.reason == "NoFit"
    assert "the largest of 2 matching nodes" in reason.message
    assert re.search(r"lack [\d,]+ bytes", reason.message)


def test_the_smallest_number_of_gpus_that_fits_is_taken_and_the_smaller_ones_are_explained() -> None:
    result = planned(facts=KIMI_K2, hardware=H200, world_sizes=None)
    assert result.ranks == 8
    assert result.precision.weights is WeightFormat.INT4
    assert not result.precision.converted
    assert [item.option for item in result.passed_over] == ["1 GPUs", "2 GPUs", "4 GPUs"]
    assert all("GiB" in item.why for item in result.passed_over)


def test_kimi_on_h200_holds_what_its_stated_reserves_leave() -> None:
    result = planned(facts=KIMI_K2, hardware=H200, world_sizes=None)
    layout = ParallelLayout.of(KIMI_K2, 8)
    lines = result.memory
    assert lines.needed <= lines.total == 143_771 * 2**20
    assert result.kv_tokens == tokens_in(lines.kv_cache, KIMI_K2, KvFormat.FP8, layout)
    assert lines.unused < 64 * 70_272, "less than a page is left over"


def test_published_kimi_capacity_follows_from_the_bytes() -> None:
    layout = ParallelLayout.of(KIMI_K2, 8)
    assert tokens_in(48_200_000_000, KIMI_K2, KvFormat.BF16, layout) == pytest.approx(686_000, rel=0.01)
    assert tokens_in(48_200_000_000, KIMI_K2, KvFormat.FP8, layout) == pytest.approx(1_370_000, rel=0.01)


def test_a_gpu_gives_all_its_remaining_memory_to_the_cache() -> None:
    result = planned(facts=QWEN_30B, hardware=H100)
    assert result.ranks == 1
    assert result.memory.kv_cache > 40 * GIB
    assert result.max_model_len == QWEN_30B.max_position_embeddings
    assert result.max_concurrent_requests == 64


def test_what_does_not_fit_says_by_how_much_and_which_change_fits() -> None:
    precision = PrecisionRequest(conversion=Conversion.NEVER)
    reason = refused(facts=QWEN_30B, hardware=gpu("9.0", 24_576, per_node=1), precision=precision)
    assert reason.reason == "NoFit"
    assert "compute capability 9.0" in reason.message
    assert "bytes" in reason.message
    assert "set precision.conversion: Allowed" in reason.message
    changed = plan(PlanRequest(QWEN_30B, gpu("9.0", 24_576, per_node=1)))
    assert isinstance(changed, Plan), "the advice is true"


def test_a_context_that_does_not_fit_is_answered_with_the_longest_that_does() -> None:
    bf16 = PrecisionRequest(kv=KvFormat.BF16)
    request = PlanRequest(QWEN_30B, gpu("8.9", 23_034, per_node=1), precision=bf16, max_model_len=40_960)
    reason = plan(request)
    assert isinstance(reason, NoPlan)
    advised = re.search(r"set context.maxModelLen to at most (\d+)", reason.message)
    assert advised, reason.message
    shorter = plan(dataclasses.replace(request, max_model_len=int(advised[1])))
    assert isinstance(shorter, Plan), "the advice is true"
    longer = plan(dataclasses.replace(request, max_model_len=int(advised[1]) + 65))
    assert isinstance(longer, NoPlan), "the advice is the longest"


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"facts": DENSE}, "NotMixtureOfExperts", "LlamaForCausalLM"),
        ({"max_model_len": 4096}, "ContextTooLong", "2048"),
        ({"hardware": gpu("7.5", 16_000)}, "DeviceTooOld", "7.5"),
        (
            {"hardware": gpu("9.0", 81_559, per_node=2), "gpus_per_replica": 4, "world_sizes": None},
            "NotEnoughGPUs",
            "gpusPerReplica 4",
        ),
        ({"hardware": H100, "gpus_per_replica": 3, "world_sizes": None}, "NotDivisible", "3"),
        ({"precision": PrecisionRequest(weights=WeightFormat.FP8)}, "WeightsUnsupported", "FP8"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(changes: dict[str, Any], reason: str, words: str) -> None:
    outcome = refused(**changes)
    assert outcome.reason == reason
    assert words in outcome.message


ONE_GPU = "this version of the bundled runtime runs on one GPU"


def test_a_model_that_only_several_gpus_hold_is_not_planned_for_a_runtime_that_runs_on_one() -> None:
    reason = refused(facts=KIMI_K2, hardware=H200)
    assert reason.reason == "TensorParallelUnsupported"
    assert re.search(r"1 x 143771 MiB .* lack [\d,]+ bytes", reason.message), "the bytes missing on one GPU are named"
    assert f"8 GPUs would hold it, but {ONE_GPU}" in reason.message
    assert "nodes with more GPUs" not in reason.message, "more GPUs would not help"


def test_where_no_number_of_gpus_helps_the_missing_bytes_and_not_the_runtime_are_the_reason() -> None:
    reason = refused(facts=KIMI_K2, hardware=gpu("9.0", 24_576))
    assert reason.reason == "NoFit"
    assert ONE_GPU in reason.message
    assert "nodes with more GPUs" not in reason.message


def test_a_change_that_fits_one_gpu_is_advised_even_where_two_would_hold_the_model_as_it_is() -> None:
    request = PlanRequest(QWEN_30B, gpu("9.0", 49_140), precision=PrecisionRequest(conversion=Conversion.NEVER))
    reason = plan(request)
    assert isinstance(reason, NoPlan)
    assert reason.reason == "TensorParallelUnsupported"
    assert "set precision.conversion: Allowed" in reason.message
    assert isinstance(plan(dataclasses.replace(request, precision=PrecisionRequest())), Plan), "the advice is true"


@pytest.mark.parametrize("gpus", [2, 64])
def test_several_gpus_per_replica_are_refused_by_name(gpus: int) -> None:
    reason = refused(facts=QWEN_30B, hardware=H200, gpus_per_replica=gpus)
    assert reason.reason == "TensorParallelUnsupported"
    assert f"gpusPerReplica {gpus}" in reason.message
    assert ONE_GPU in reason.message
    assert planned(facts=QWEN_30B, hardware=H200, gpus_per_replica=1).ranks == 1


def test_sizes_that_the_runtime_does_not_run_are_passed_over_with_the_reason() -> None:
    result = planned(facts=QWEN_30B, hardware=H100, world_sizes=frozenset({2}))
    assert result.ranks == 2
    assert [item.option for item in result.passed_over] == ["1 GPUs"]
    assert "the bundled runtime runs on 2 GPUs" in result.passed_over[0].why


def test_an_unknown_generation_runs_on_the_safe_formats() -> None:
    result = planned(facts=TINY, hardware=gpu("13.0", 200_000))
    assert not result.precision.recognised
    assert result.precision.summary == "BF16, KV BF16"


@settings(deadline=None)  # the machine may be busy
@given(
    memory=st.integers(min_value=4_000, max_value=300_000),
    requests=st.one_of(st.none(), st.integers(min_value=1, max_value=512)),
    context=st.one_of(st.none(), st.integers(min_value=1, max_value=40_960)),
)
def test_every_plan_fits_its_gpu_and_holds_its_longest_request(
    memory: int, requests: int | None, context: int | None
) -> None:
    outcome = plan(
        PlanRequest(
            QWEN_30B, gpu("9.0", memory), world_sizes=None, max_model_len=context, max_concurrent_requests=requests
        )
    )
    if isinstance(outcome, NoPlan):
        assert outcome.reason == "NoFit"
        return
    assert outcome.memory.unused >= 0
    assert outcome.kv_tokens >= outcome.max_model_len
    assert context in (None, outcome.max_model_len)
    assert requests in (None, outcome.max_concurrent_requests)


@settings(deadline=None)  # the machine may be busy
@given(memory=st.integers(min_value=8_000, max_value=290_000), more=st.integers(min_value=0, max_value=100_000))
def test_more_memory_never_needs_more_gpus(memory: int, more: int) -> None:
    small = plan(PlanRequest(QWEN_30B, gpu("9.0", memory), world_sizes=None))
    large = plan(PlanRequest(QWEN_30B, gpu("9.0", memory + more), world_sizes=None))
    if isinstance(small, Plan):
        assert isinstance(large, Plan)
        assert large.ranks <= small.ranks
