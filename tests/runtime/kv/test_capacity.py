"""FP8 holds twice the tokens of BF16 in the same bytes: the pool is filled to refusal, every byte counted."""

from __future__ import annotations

import pytest

from benchmarks.capacity import KIMI_K26, QWEN3_30B, fill
from octavo_runtime.contract.footprint import PAGE_METADATA_BYTES, kv_bytes_per_token, tokens_in
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling
from octavo_runtime.contract.refused import Refused
from octavo_runtime.kv.capacity import kv_capacity

BUDGET_BYTES = 64 << 20
LAYOUT = ParallelLayout.of(QWEN3_30B, 1)
SMALL = QWEN3_30B.model_copy(
    update={"layers": 2, "attention": QWEN3_30B.attention.model_copy(update={"kv_heads": 2, "head_dim": 16})}
)
"""The tiny model's shape, where the integrity records weigh most."""


@pytest.mark.parametrize("page_size", [16, 64, 128])
def test_fp8_holds_at_least_1_97_times_the_tokens_of_bf16(page_size: int) -> None:
    bf16 = fill(QWEN3_30B, KvFormat.BF16, BUDGET_BYTES, page_size)
    fp8 = fill(QWEN3_30B, KvFormat.FP8, BUDGET_BYTES, page_size)
    assert max(bf16.storage_bytes, fp8.storage_bytes) <= BUDGET_BYTES
    assert fp8.tokens / bf16.tokens >= 1.97


@pytest.mark.parametrize("page_size", [64, 128])
def test_the_same_holds_for_a_tiny_model(page_size: int) -> None:
    bf16, fp8 = (fill(SMALL, kv, 1 << 20, page_size) for kv in (KvFormat.BF16, KvFormat.FP8))
    assert bf16.bytes_per_token / fp8.bytes_per_token >= 1.97


def test_mla_rows_take_exactly_half_and_everything_counted_all_but_half() -> None:
    layout = ParallelLayout.of(KIMI_K26, 1)
    rows = [kv_bytes_per_token(KIMI_K26, kv, layout) for kv in (KvFormat.BF16, KvFormat.FP8)]
    assert rows == [70_272, 35_136]
    bf16, fp8 = (fill(KIMI_K26, kv, BUDGET_BYTES) for kv in (KvFormat.BF16, KvFormat.FP8))
    assert 1.9999 < bf16.bytes_per_token / fp8.bytes_per_token < 2


def test_scales_per_token_and_head_cost_three_percent_at_head_dim_128() -> None:
    bf16 = fill(QWEN3_30B, KvFormat.BF16, BUDGET_BYTES)
    fp8 = fill(QWEN3_30B, KvFormat.FP8, BUDGET_BYTES, scaling=KvScaling.PER_TOKEN_HEAD)
    assert bf16.bytes_per_token / fp8.bytes_per_token == pytest.approx(1.94, abs=0.005)


def test_integrity_records_take_less_than_a_fifth_of_a_byte_per_token() -> None:
    with_records, rows = (
        fill(QWEN3_30B, KvFormat.FP8, BUDGET_BYTES),
        kv_bytes_per_token(QWEN3_30B, KvFormat.FP8, LAYOUT),
    )
    assert with_records.bytes_per_token - rows == pytest.approx(0.1875, abs=1e-6)


@pytest.mark.parametrize("kv", list(KvFormat))
def test_the_pool_occupies_what_the_contract_says(kv: KvFormat) -> None:
    filled = fill(QWEN3_30B, kv, BUDGET_BYTES)
    assert filled.tokens == tokens_in(BUDGET_BYTES, QWEN3_30B, kv, LAYOUT)
    pages = filled.tokens // 64 + 1
    expected = pages * (64 * kv_bytes_per_token(QWEN3_30B, kv, LAYOUT) + PAGE_METADATA_BYTES)
    assert filled.storage_bytes == expected


def test_the_derivation_names_every_figure() -> None:
    capacity = kv_capacity(QWEN3_30B, KvFormat.FP8, LAYOUT, 10_000_000, 64)
    assert capacity.derivation == (
        "10000000 bytes / (64 tokens x 49152 bytes of FP8 KV + 12 bytes of integrity record) = 3 pages, "
        "less the NULL page = 128 tokens"
    )
    assert (capacity.tokens, capacity.storage_bytes) == (128, 3 * capacity.page_bytes)


def test_the_derivation_names_scales_that_stand_beside_the_tokens() -> None:
    capacity = kv_capacity(QWEN3_30B, KvFormat.FP8, LAYOUT, 10_000_000, 64, KvScaling.PER_TOKEN_HEAD)
    assert capacity.derivation == (
        "10000000 bytes / (64 tokens x (49152 bytes of FP8 KV + 1536 bytes of scales) + 12 bytes of integrity record) "
        "= 3 pages, less the NULL page = 128 tokens"
    )


def test_a_budget_without_room_for_a_page_is_refused_with_the_bytes_it_takes() -> None:
    with pytest.raises(Refused, match=r"--kv-cache-memory-bytes 6000000 .* two pages of 64 tokens in FP8 take 6291480"):
        kv_capacity(QWEN3_30B, KvFormat.FP8, LAYOUT, 6_000_000, 64)
