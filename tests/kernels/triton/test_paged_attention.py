"""Paged attention in Triton equals the reference, up to the bfloat16 operands of its products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.verdict import UNCONCLUDED, Finding, findings_of
from octavo_kernels.reference.paged_attention import paged_attention as reference
from octavo_kernels.triton import attention_tiles
from octavo_kernels.triton.paged_attention import paged_attention
from tests.kernels.close import assert_close
from tests.kernels.paged import Scenario, scenario

FP8 = torch.float8_e4m3fn
ONE = torch.ones(())
ROUNDING = 0.02
"""Queries and keys here are bfloat16 numbers already, so only the shares are rounded, by 2**-9 of a value that seldom
exceeds 4."""


@dataclass(frozen=True)
class Step:
    """A scenario with a query for each of its new tokens, and the scales of its pages."""

    pool: Scenario
    query: torch.Tensor
    k_scale: torch.Tensor = ONE
    v_scale: torch.Tensor = ONE

    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            "k_pages": self.pool.k_pages,
            "v_pages": self.pool.v_pages,
            "k_scale": self.k_scale,
            "v_scale": self.v_scale,
            "block_table": self.pool.block_table,
            "query_start": self.pool.query_start,
            "context_lens": self.pool.context_lens,
            "positions": self.pool.positions,
        }

    def expected(self) -> torch.Tensor:
        return reference(self.query, **self.tensors(), softmax_scale=0.3)

    def attend(self) -> torch.Tensor:
        return paged_attention(self.query, **self.tensors(), softmax_scale=0.3)

    def attend_checked(self) -> torch.Tensor:
        return paged_attention(
            self.query, **self.tensors(), softmax_scale=0.3, page_tags=self.pool.tags, verdict=self.pool.verdict
        )


def step_of(
    contexts: Sequence[int],
    new: Sequence[int],
    *,
    group: int = 2,
    page_size: int = 16,
    kv_heads: int = 2,
    dim: int = 16,
    dtype: torch.dtype = torch.bfloat16,
) -> Step:
    pool = scenario(contexts, new, page_size=page_size, kv_heads=kv_heads, dim=dim, dtype=dtype)
    generator = torch.Generator().manual_seed(sum(contexts))
    query = torch.randn((sum(new), kv_heads * group, dim), generator=generator).bfloat16().float()
    return Step(pool, query)


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of a few dozen tokens are split as if they were long."""
    monkeypatch.setattr(attention_tiles, "KEYS_PER_SPLIT", 16)


@settings(deadline=None, max_examples=8)
@given(
    contexts=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    group=st.sampled_from([1, 3, 8, 20]),
    page_size=st.sampled_from([3, 16, 64, 128]),
    dim=st.sampled_from([8, 64, 96]),
    dtype=st.sampled_from([torch.bfloat16, FP8]),
)
def test_decode_of_any_shape_equals_the_reference(
    contexts: list[int], group: int, page_size: int, dim: int, dtype: torch.dtype
) -> None:
    step = step_of(contexts, [1] * len(contexts), group=group, page_size=page_size, dim=dim, dtype=dtype)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@settings(deadline=None, max_examples=8)
@given(
    contexts=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    share=st.floats(0.1, 1.0),
    group=st.sampled_from([1, 3, 8]),
    page_size=st.sampled_from([3, 16, 64]),
    dim=st.sampled_from([8, 64]),
    dtype=st.sampled_from([torch.bfloat16, FP8]),
)
def test_chunks_and_decodes_in_one_batch_equal_the_reference(
    contexts: list[int], share: float, group: int, page_size: int, dim: int, dtype: torch.dtype
) -> None:
    new = [max(1, int(context * share)) for context in contexts]
    step = step_of(contexts, new, group=group, page_size=page_size, dim=dim, kv_heads=1, dtype=dtype)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("group", [64, 70, 150])
def test_groups_beyond_a_tile_equal_the_reference(group: int, new: int) -> None:
    step = step_of([40], [new], group=group, kv_heads=1)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize(("dim", "new"), [(192, 1), (256, 9)])
def test_wide_heads_equal_the_reference(dim: int, new: int) -> None:
    step = step_of([70], [new], dim=dim, kv_heads=1, dtype=FP8)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize("context", [1, 15, 16, 17, 63, 64, 65, 129])
@pytest.mark.usefixtures("short_splits")
def test_split_contexts_equal_the_reference_beside_page_and_tile_boundaries(context: int) -> None:
    step = step_of([context], [1], kv_heads=1, dtype=FP8)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


def test_a_context_of_thousands_is_split_and_equals_the_reference() -> None:
    step = step_of([3001], [1], kv_heads=1, page_size=64, dim=64, dtype=FP8)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


def test_a_chunk_behind_thousands_equals_the_reference() -> None:
    step = step_of([2001], [20], kv_heads=1, page_size=64, dim=64, dtype=FP8)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.usefixtures("short_splits")
def test_scratch_of_a_split_decode_does_not_grow_with_the_chunks_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.Tensor | None] = []

    def remembered(*args: object) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        parts = attention_tiles.scratch(*args)  # type: ignore[arg-type]
        taken.extend(parts)
        return parts

    monkeypatch.setattr("octavo_kernels.triton.paged_attention.scratch", remembered)
    step = step_of([40, 70, 50], [40, 1, 1], kv_heads=1)
    assert_close(step.attend(), step.expected(), within=ROUNDING)
    assert [None if part is None else part.shape[0] for part in taken] == [3, 3]


@pytest.mark.parametrize(
    ("contexts", "new"),
    [([20, 30], [0, 2]), ([20, 30, 9], [3, 0, 0]), ([20, 30], [0, 9]), ([20, 30, 40, 9], [0, 5, 0, 1])],
)
@pytest.mark.usefixtures("short_splits")
def test_rows_without_tokens_change_nothing_for_the_others(contexts: list[int], new: list[int]) -> None:
    step = step_of(contexts, new)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


def test_a_padding_row_without_context_reads_as_zero() -> None:
    step = step_of([20, 1], [1, 1])
    step.pool.context_lens[1] = 0
    out = step.attend()
    assert not out[1].any()
    assert_close(out, step.expected(), within=ROUNDING)


@pytest.mark.parametrize("new", [1, 6])
@pytest.mark.parametrize("layout", ["tensor", "head", "token"])
@pytest.mark.usefixtures("short_splits")
def test_each_layout_of_scales_equals_the_reference(layout: str, new: int) -> None:
    step = step_of([40, 20], [new, 1], dtype=FP8)
    shape = {"tensor": (), "head": (2,), "token": step.pool.k_pages.shape[:3]}[layout]
    generator = torch.Generator().manual_seed(1)
    k_scale, v_scale = (torch.rand(shape, generator=generator) + 0.5 for _ in range(2))
    step = replace(step, k_scale=k_scale, v_scale=v_scale)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize("new", [1, 6])
def test_keys_and_values_may_have_different_layouts_of_scales(new: int) -> None:
    step = step_of([40], [new], dtype=FP8)
    step = replace(step, k_scale=torch.tensor(0.5), v_scale=torch.rand(step.pool.k_pages.shape[:3]))
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_a_nan_in_a_key_or_value_shows_where_the_reference_shows_it(dtype: torch.dtype) -> None:
    step = step_of([20, 20, 20], [1, 1, 1], dtype=dtype)
    bits, nan = (torch.uint8, 0x7F) if dtype == FP8 else (torch.int16, 0x7FC0)
    first, second = step.pool.block_table[:2, 0, 0].tolist()
    step.pool.k_pages.view(bits)[first, 3, 0, 5] = nan
    step.pool.v_pages.view(bits)[second, 3, 1, 5] = nan
    out, expected = step.attend(), step.expected()
    assert torch.equal(out.isnan(), expected.isnan())
    assert expected.isnan().any()
    assert_close(out.nan_to_num(), expected.nan_to_num(), within=ROUNDING)


@settings(deadline=None, max_examples=6)
@given(
    place=st.integers(0, 89),
    kind=st.sampled_from([0x7FC0, 0x7F80, -0x0080]),
    dtype=st.sampled_from([torch.bfloat16, FP8]),
)
def test_a_value_that_is_no_number_spoils_no_token_of_a_chunk_that_does_not_see_it(
    place: int, kind: int, dtype: torch.dtype
) -> None:
    step = step_of([90], [40], kv_heads=1, dtype=dtype)
    page = int(step.pool.block_table[0, place // 16, 0])
    if dtype == FP8:
        step.pool.v_pages.view(torch.uint8)[page, place % 16, 0, 5] = 0x7F
    else:
        step.pool.v_pages.view(torch.int16)[page, place % 16, 0, 5] = kind
    out, expected = step.attend(), step.expected()
    sees = step.pool.positions >= place
    assert not out[sees][..., 5].isfinite().any()
    assert_close(out[~sees], expected[~sees], within=ROUNDING)
    assert not out[:, :, :5].isinf().any()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.usefixtures("short_splits")
def test_a_query_that_is_no_number_spoils_its_own_head_alone(number: float) -> None:
    step = step_of([70, 40], [1, 1])
    step.query[0, 1, 0] = number
    out, expected = step.attend(), step.expected()
    assert torch.equal(out.isnan(), expected.isnan())
    assert_close(out.nan_to_num(), expected.nan_to_num(), within=ROUNDING)


def test_bfloat16_queries_give_a_bfloat16_result() -> None:
    step = step_of([20, 30], [1, 3])
    out = paged_attention(step.query.bfloat16(), **step.tensors(), softmax_scale=0.3)
    assert out.dtype == torch.bfloat16
    assert_close(out.float(), step.expected(), within=2 * ROUNDING)


@pytest.mark.parametrize("new", [1, 6])
@pytest.mark.parametrize("page", [10**6, -(2**31)])
def test_a_page_outside_the_pool_reads_the_null_page(page: int, new: int) -> None:
    step = step_of([40, 30], [new, 1])
    step.pool.block_table[0, 1, 0] = page
    # The NULL page of these scenarios holds values of 100.
    assert_close(step.attend(), step.expected(), within=100 * ROUNDING)


@pytest.mark.parametrize("new", [1, 6])
@pytest.mark.parametrize("split", [False, True])
def test_a_context_longer_than_the_table_makes_its_row_nan_and_reads_no_further(
    new: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if split:
        monkeypatch.setattr(attention_tiles, "KEYS_PER_SPLIT", 16)
    step = step_of([40, 30], [new, 1], kv_heads=1)
    expected = step.expected()
    step.pool.context_lens[0] = 10**6
    step.pool.positions[new - 1] = 10**6 - 1
    out = step.attend()
    assert out[:new].isnan().all()
    assert_close(out[new:], expected[new:], within=ROUNDING)


@pytest.mark.usefixtures("short_splits")
def test_a_position_before_the_context_reads_nothing() -> None:
    step = step_of([40, 30], [1, 1], kv_heads=1)
    step.pool.positions[0] = -(10**5)
    assert not step.attend()[0].any()


def test_a_table_without_pages_is_refused() -> None:
    step = step_of([20], [1])
    tensors = step.tensors() | {"block_table": torch.zeros((1, 0, 2), dtype=torch.int32)}
    with pytest.raises(KernelInputError, match="rows of no pages"):
        paged_attention(step.query, **tensors, softmax_scale=1.0)


@pytest.mark.parametrize("new", [1, 6])
@pytest.mark.usefixtures("short_splits")
def test_sound_rows_pass_the_fused_check_unmarked(new: int) -> None:
    step = step_of([40, 130], [new, 1], kv_heads=1)
    assert_close(step.attend_checked(), step.expected(), within=ROUNDING)
    assert step.pool.verdict.tolist() == [0, 0]


def stale_tag(pool: Scenario) -> None:
    pool.block_table[0, 1, 1] -= 2


def freed_page(pool: Scenario) -> None:
    pool.tags[pool.block_table[0, 0, 0]] += 1


def foreign_page(pool: Scenario) -> None:
    pool.block_table[0, 0, 0] = pool.block_table[1, 0, 0]


def page_beyond_the_pool(pool: Scenario) -> None:
    pool.block_table[0, 2, 0] = pool.tags.shape[0]


def null_page(pool: Scenario) -> None:
    pool.block_table[0, 0] = 0


def context_beyond_the_table(pool: Scenario) -> None:
    pool.context_lens[0] = 10**6


FAULTS = {
    stale_tag: Finding.TAG,
    freed_page: Finding.TAG,
    foreign_page: Finding.TAG,
    page_beyond_the_pool: Finding.RANGE | Finding.TAG,
    null_page: Finding.RANGE,
    context_beyond_the_table: Finding.RANGE,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(("new", "split"), [(1, True), (1, False), (6, False)])
def test_the_fused_check_marks_and_blanks_a_faulty_row_alone(
    fault: object, new: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if split:
        monkeypatch.setattr(attention_tiles, "KEYS_PER_SPLIT", 16)
    step = step_of([40, 30], [new, 1], kv_heads=1)
    expected = step.expected()
    step.pool.verdict[0] = UNCONCLUDED | int(Finding.FILL)
    fault(step.pool)  # type: ignore[operator]
    out = step.attend_checked()
    assert not out[:new].any()
    assert_close(out[new:], expected[new:], within=ROUNDING)
    assert findings_of(int(step.pool.verdict[0]), 1) == FAULTS[fault] | Finding.FILL  # type: ignore[index]
    assert int(step.pool.verdict[1]) == 0


def test_an_empty_batch_is_answered_without_a_launch() -> None:
    step = step_of([20], [1])
    tensors = step.tensors() | {"positions": torch.zeros(0, dtype=torch.int64), "query_start": torch.zeros(2).int()}
    assert paged_attention(step.query[:0], **tensors, softmax_scale=1.0).shape == (0, 4, 16)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("k_pages", lambda t: t.float(), "k_pages is torch.float32"),
        ("block_table", lambda t: t.long(), "block_table is torch.int64"),
        ("block_table", lambda t: t[..., 0], "block_table has shape"),
        ("positions", lambda t: t.int(), "positions is torch.int32"),
        ("context_lens", lambda t: t[:0], "context_lens has shape"),
        ("block_table", lambda t: t.repeat(1, 2, 1)[:, ::2], "block_table is not contiguous"),
        ("k_scale", lambda t: torch.ones(3), "k_scale has shape"),
    ],
)
def test_wrong_inputs_are_refused_by_name(name: str, spoil: object, message: str) -> None:
    step = step_of([20, 30], [1, 3])
    tensors = step.tensors()
    tensors[name] = spoil(tensors[name])  # type: ignore[operator]
    with pytest.raises(KernelInputError, match=message):
        paged_attention(step.query, **tensors, softmax_scale=1.0)


def test_wrong_queries_are_refused_by_name() -> None:
    step = step_of([20, 30], [1, 3])
    for query, message in (
        (step.query.double(), "query is torch.float64"),
        (step.query.transpose(0, 1).contiguous().transpose(0, 1), "query is not contiguous"),
        (step.query[:, :3].contiguous(), "needed a multiple of 2 KV heads"),
        (step.query[..., :8].contiguous(), "query has shape"),
    ):
        with pytest.raises(KernelInputError, match=message):
            paged_attention(query, **step.tensors(), softmax_scale=1.0)


def test_half_a_fused_check_is_refused() -> None:
    step = step_of([20], [1])
    with pytest.raises(KernelInputError, match="belong together"):
        paged_attention(step.query, **step.tensors(), softmax_scale=1.0, page_tags=step.pool.tags)
