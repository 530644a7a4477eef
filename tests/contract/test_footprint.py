"""The memory arithmetic reproduces published deployments (DESIGN.md section 5) and agrees with itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.contract.facts import CheckpointFormat, ModelFacts
from octavo_runtime.contract.footprint import (
    bytes_for_tokens,
    expert_bits,
    kv_bytes_per_token,
    kv_row_elements,
    page_bytes,
    pages_in,
    tokens_in,
    weight_bytes,
)
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling, WeightFormat
from tests.contract.models import GLM_52, GLM_52_FP8, KIMI_K26, MIXTRAL, PUBLISHED, QWEN3_30B

GIB = 2**30
H200_BYTES = 143_771 * 2**20


def _one(facts: ModelFacts) -> ParallelLayout:
    return ParallelLayout.of(facts, 1)


@pytest.mark.parametrize(
    ("facts", "bf16_bytes"), [(KIMI_K26, 70_272), (GLM_52, 89_856), (QWEN3_30B, 98_304), (MIXTRAL, 131_072)]
)
def test_kv_bytes_per_token_are_the_published_ones_and_fp8_takes_half(facts: ModelFacts, bf16_bytes: int) -> None:
    assert kv_bytes_per_token(facts, KvFormat.BF16, _one(facts)) == bf16_bytes
    assert kv_bytes_per_token(facts, KvFormat.FP8, _one(facts)) * 2 == bf16_bytes


def test_kimi_holds_686k_tokens_in_bf16_and_1_37m_in_fp8_in_the_same_bytes() -> None:
    layout = ParallelLayout.of(KIMI_K26, 8)
    budget_bytes = 48_200_000_000

    assert tokens_in(budget_bytes, KIMI_K26, KvFormat.BF16, layout) == pytest.approx(686_000, rel=0.01)
    assert tokens_in(budget_bytes, KIMI_K26, KvFormat.FP8, layout) == pytest.approx(1_370_000, rel=0.01)


@pytest.mark.parametrize("facts", PUBLISHED, ids=lambda facts: facts.architecture)
def test_fp8_holds_at_least_1_97_times_the_tokens_of_bf16(facts: ModelFacts) -> None:
    bf16 = tokens_in(10 * GIB, facts, KvFormat.BF16, _one(facts))
    fp8 = tokens_in(10 * GIB, facts, KvFormat.FP8, _one(facts))
    assert fp8 >= 1.97 * bf16


def test_kimi_weighs_594_gb_and_74_gb_on_each_of_eight_gpus() -> None:
    whole = weight_bytes(KIMI_K26, WeightFormat.INT4, _one(KIMI_K26)).total
    share = weight_bytes(KIMI_K26, WeightFormat.INT4, ParallelLayout.of(KIMI_K26, 8)).total

    assert whole == pytest.approx(594.2e9, rel=0.005)
    assert whole == pytest.approx(KIMI_K26.checkpoint_bytes, rel=1e-5)
    assert share == pytest.approx(74.3e9, rel=0.005)


def test_kimi_with_686k_tokens_fills_an_h200_as_published() -> None:
    layout = ParallelLayout.of(KIMI_K26, 8)
    used = weight_bytes(KIMI_K26, WeightFormat.INT4, layout).total
    used += bytes_for_tokens(686_000, KIMI_K26, KvFormat.BF16, layout)
    assert used / 141e9 == pytest.approx(0.869, rel=0.005)
    assert used < H200_BYTES


def test_glm_weighs_705_gib_in_fp8_and_420_gib_with_int4_experts() -> None:
    assert weight_bytes(GLM_52_FP8, WeightFormat.FP8, _one(GLM_52)).total / GIB == pytest.approx(704.9, rel=0.005)
    assert weight_bytes(GLM_52, WeightFormat.INT4, _one(GLM_52)).total / GIB == pytest.approx(419.9, rel=0.0005)


@pytest.mark.parametrize(("group", "gib"), [(64, 411.8), (128, 401.2)])
def test_other_int4_groups_weigh_what_was_published(group: int, gib: float) -> None:
    """Published with the multi-token prediction layer left in BF16."""
    layer_experts = 256 * 3 * 2048 * 6144
    plain = GLM_52.parameters.embeddings + GLM_52.parameters.other + layer_experts
    total_bits = 75 * layer_experts * expert_bits(WeightFormat.INT4, group) + plain * 16
    assert total_bits / 8 / GIB == pytest.approx(gib, rel=0.0005)


@pytest.mark.parametrize("facts", [GLM_52, QWEN3_30B, MIXTRAL], ids=lambda facts: facts.architecture)
def test_bf16_weighs_what_the_checkpoint_does(facts: ModelFacts) -> None:
    assert weight_bytes(facts, WeightFormat.BF16, _one(facts)).total == 2 * facts.parameters.total


def test_converting_to_fp8_leaves_everything_but_the_experts_in_bf16() -> None:
    converted = weight_bytes(GLM_52, WeightFormat.FP8, _one(GLM_52))
    own = weight_bytes(GLM_52_FP8, WeightFormat.FP8, _one(GLM_52))
    assert converted.other == 2 * GLM_52.parameters.other
    assert own.other == pytest.approx(GLM_52.parameters.other, rel=0.001)
    assert converted.embeddings == own.embeddings == 2 * GLM_52.parameters.embeddings


def test_a_checkpoint_keeps_its_own_group_size_and_a_conversion_takes_ours() -> None:
    own = KIMI_K26.model_copy(update={"group_size": 128})
    assert weight_bytes(own, WeightFormat.INT4, _one(own)).routed_experts * 8 == pytest.approx(
        own.parameters.routed_experts * 4.125
    )
    assert weight_bytes(GLM_52, WeightFormat.INT4, _one(GLM_52)).routed_experts * 8 == pytest.approx(
        GLM_52.parameters.routed_experts * 4.5
    )


def test_mla_rows_are_whole_on_every_rank_and_grouped_heads_are_split() -> None:
    assert {kv_row_elements(KIMI_K26, ParallelLayout.of(KIMI_K26, tp)) for tp in (1, 2, 4, 8)} == {576}
    assert [kv_row_elements(QWEN3_30B, ParallelLayout.of(QWEN3_30B, tp)) for tp in (1, 2, 4, 8)] == [
        1024,
        512,
        256,
        256,
    ]


@given(
    budget_bytes=st.integers(-10, 2**40),
    facts=st.sampled_from(PUBLISHED),
    kv=st.sampled_from(KvFormat),
    page_size=st.sampled_from([16, 32, 64, 128]),
    scaling=st.sampled_from(KvScaling),
)
def test_pages_fit_their_budget_and_one_more_would_not(
    budget_bytes: int, facts: ModelFacts, kv: KvFormat, page_size: int, scaling: KvScaling
) -> None:
    layout = _one(facts)
    pages = pages_in(budget_bytes, facts, kv, layout, page_size, scaling)
    one = page_bytes(facts, kv, layout, page_size, scaling)
    assert pages * one <= max(0, budget_bytes) < (pages + 1) * one
    assert tokens_in(budget_bytes, facts, kv, layout, page_size, scaling) == max(0, pages - 1) * page_size


@pytest.mark.parametrize(("facts", "scale_bytes"), [(QWEN3_30B, 48 * 2 * 4 * 4), (KIMI_K26, 61 * 4)])
def test_scales_per_token_and_head_are_counted_and_bf16_has_none(facts: ModelFacts, scale_bytes: int) -> None:
    def extra(kv: KvFormat) -> int:
        plain, scaled = (page_bytes(facts, kv, _one(facts), 64, scaling) for scaling in KvScaling)
        return scaled - plain

    assert extra(KvFormat.FP8) == 64 * scale_bytes
    assert extra(KvFormat.BF16) == 0


@given(tokens=st.integers(1, 10**7), facts=st.sampled_from(PUBLISHED), page_size=st.sampled_from([16, 64, 128]))
def test_the_budget_for_tokens_is_the_smallest_that_holds_them(tokens: int, facts: ModelFacts, page_size: int) -> None:
    layout = _one(facts)
    budget = bytes_for_tokens(tokens, facts, KvFormat.FP8, layout, page_size)
    assert tokens_in(budget, facts, KvFormat.FP8, layout, page_size) >= tokens
    assert tokens_in(budget - 1, facts, KvFormat.FP8, layout, page_size) < tokens


@given(world=st.sampled_from([1, 2, 4, 8]), option=st.sampled_from(WeightFormat), facts=st.sampled_from(PUBLISHED))
def test_ranks_together_hold_the_whole_model(world: int, option: WeightFormat, facts: ModelFacts) -> None:
    whole = weight_bytes(facts, option, _one(facts)).total
    rank = weight_bytes(facts, option, ParallelLayout.of(facts, world)).total
    assert whole <= rank * world <= whole + 3 * world


def test_formats_order_by_size() -> None:
    sizes = [expert_bits(option) for option in (WeightFormat.BF16, WeightFormat.FP8, WeightFormat.INT4)]
    assert sizes == sorted(sizes, reverse=True)
    assert expert_bits(WeightFormat.INT4, 32) == 4.5
    assert expert_bits(WeightFormat.NVFP4) == 4.5
    assert {f.value for f in CheckpointFormat if f.quantised} == {"FP8", "INT4", "NVFP4"}
