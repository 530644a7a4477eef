"""Paged attention equals torch's own attention on keys and values gathered by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.attention_tiles import KEY_TILE
from octavo_kernels.reference.paged_attention import paged_attention
from tests.kernels.close import assert_close
from tests.kernels.paged import Scenario, scenario

TOLERANCE = 2e-6
"""Largest difference of two float32 attentions over values of size one; measured 5e-7 over 4,000 keys."""

ONE = torch.ones(())
FP8 = torch.float8_e4m3fn


def random_query(step: Scenario, heads: int, seed: int = 1) -> torch.Tensor:
    shape = (step.positions.shape[0], heads, step.k_pages.shape[3])
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attend(
    step: Scenario, query: torch.Tensor, k_scale: torch.Tensor = ONE, v_scale: torch.Tensor = ONE
) -> torch.Tensor:
    return paged_attention(
        query,
        k_pages=step.k_pages,
        v_pages=step.v_pages,
        k_scale=k_scale,
        v_scale=v_scale,
        block_table=step.block_table,
        query_start=step.query_start,
        context_lens=step.context_lens,
        positions=step.positions,
        softmax_scale=query.shape[2] ** -0.5,
    )


def torch_attention(step: Scenario, query: torch.Tensor, k_scale: float = 1.0, v_scale: float = 1.0) -> torch.Tensor:
    """Row by row through scaled_dot_product_attention."""
    rows = []
    for row in range(step.rows):
        tokens = slice(int(step.query_start[row]), int(step.query_start[row + 1]))
        group = query.shape[1] // step.keys[row].shape[1]
        key = (step.keys[row] * k_scale).repeat_interleave(group, dim=1).transpose(0, 1)
        value = (step.values[row] * v_scale).repeat_interleave(group, dim=1).transpose(0, 1)
        seen = torch.arange(key.shape[1]) <= step.positions[tokens, None]
        attended = F.scaled_dot_product_attention(query[tokens].transpose(0, 1), key, value, attn_mask=seen)
        rows.append(attended.transpose(0, 1))
    return torch.cat(rows)


@st.composite
def steps(draw: st.DrawFn) -> Scenario:
    page_size = draw(st.sampled_from([1, 3, 16, 64]))
    contexts = draw(st.lists(st.integers(1, 2 * page_size + 3) | st.integers(1, 150), min_size=1, max_size=4))
    return scenario(
        contexts,
        [draw(st.integers(1, context)) for context in contexts],
        page_size=page_size,
        kv_heads=draw(st.integers(1, 3)),
        dim=draw(st.sampled_from([2, 8, 10, 64])),
        dtype=draw(st.sampled_from([torch.bfloat16, FP8])),
        seed=draw(st.integers(0, 1000)),
    )


@settings(deadline=None, max_examples=40)
@given(steps(), st.sampled_from([1, 2, 5, 16, 40]))
def test_it_equals_torch_attention(step: Scenario, group: int) -> None:
    query = random_query(step, group * step.k_pages.shape[2])
    assert_close(attend(step, query), torch_attention(step, query), within=TOLERANCE)


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("boundary", [16, 64, KEY_TILE, 2 * KEY_TILE])
def test_contexts_beside_page_and_tile_boundaries(page_size: int, offset: int, boundary: int) -> None:
    context = boundary + offset
    for new in {1, min(5, context), context}:
        step = scenario([context], [new], page_size=page_size, dtype=FP8)
        query = random_query(step, 4)
        assert_close(attend(step, query), torch_attention(step, query), within=TOLERANCE)


def test_thousands_of_keys_beside_a_context_of_one() -> None:
    step = scenario([4001, 1, 2500], [1, 1, 3], page_size=64, dim=32)
    query = random_query(step, 8)
    assert_close(attend(step, query), torch_attention(step, query), within=TOLERANCE)


def test_a_context_of_one_returns_the_value_itself() -> None:
    step = scenario([1], [1])
    assert torch.equal(attend(step, random_query(step, 2)), step.values[0])


def test_scales_multiply_keys_and_values() -> None:
    step = scenario([40, 7], [3, 7], dtype=FP8)
    query = random_query(step, 4)
    got = attend(step, query, torch.tensor(0.25), torch.tensor(3.0))
    assert_close(got, torch_attention(step, query, 0.25, 3.0), within=3 * TOLERANCE)


@pytest.mark.parametrize("per_token", [False, True])
def test_scales_per_head_and_per_token_multiply_their_own_rows(per_token: bool) -> None:
    step = scenario([40, 7], [3, 7], kv_heads=3, dtype=FP8)
    generator = torch.Generator().manual_seed(4)
    shape = step.k_pages.shape[:3] if per_token else (3,)
    k_scale, v_scale = (torch.rand(shape, generator=generator) + 0.5 for _ in range(2))
    scaled = {"keys": list(step.keys), "values": list(step.values)}
    for row in range(2):
        places = torch.arange(step.keys[row].shape[0])
        pages = step.block_table[row, places // 16, 0].long()
        for name, scale in (("keys", k_scale), ("values", v_scale)):
            own = scale[pages, places % 16] if per_token else scale
            scaled[name][row] = scaled[name][row] * own[..., None]
    expected = replace(step, keys=tuple(scaled["keys"]), values=tuple(scaled["values"]))
    query = random_query(step, 6)
    assert_close(attend(step, query, k_scale, v_scale), torch_attention(expected, query), within=2 * TOLERANCE)


def test_scales_of_slots_that_nobody_has_written_are_not_seen() -> None:
    step = scenario([20], [1], dtype=FP8)
    query = random_query(step, 2)
    scale = torch.ones(step.k_pages.shape[:3])
    clean = attend(step, query, scale, scale)
    scale[step.block_table[0, 1, 0].long(), 4:] = torch.nan
    assert torch.equal(attend(step, query, scale, scale), clean)


def test_large_scores_do_not_overflow() -> None:
    step = scenario([200], [200])
    query = random_query(step, 2)
    assert attend(step, query * 1e30).isfinite().all()
    # Scores of size 300 have steps of 3e-5, which exp turns into as much relative error.
    assert_close(attend(step, query * 100), torch_attention(step, query * 100), within=3e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_a_token_gets_the_same_bits_alone_batched_and_chunked(dtype: torch.dtype) -> None:
    contexts = [1, 17, 128, 129, 200, 64, 333]
    whole = scenario(contexts, contexts, page_size=16, kv_heads=2, dim=32, dtype=dtype)
    query = random_query(whole, 8)
    together = attend(whole, query)
    for row, context in enumerate(contexts):
        alone = whole.only(row)
        own = slice(int(whole.query_start[row]), int(whole.query_start[row + 1]))
        assert torch.equal(attend(alone, query[own]), together[own])
        for position in {0, context // 2, context - 1}:
            decode = _chunk(alone, position, position + 1)
            assert torch.equal(attend(decode, query[own][position : position + 1])[0], together[own][position])
        middle = _chunk(alone, context // 3, context)
        assert torch.equal(attend(middle, query[own][context // 3 :]), together[own][context // 3 :])


def _chunk(step: Scenario, start: int, end: int) -> Scenario:
    """The step in which only positions `start` to `end` of a one-row step are new, and later ones do not exist."""
    fields = dict(step.__dict__)
    fields |= {
        "positions": torch.arange(start, end),
        "query_start": torch.tensor([0, end - start], dtype=torch.int32),
        "context_lens": torch.tensor([end], dtype=torch.int32),
        "token_rows": torch.zeros(end - start, dtype=torch.int64),
    }
    return Scenario(**fields)


def test_the_scratch_limit_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    step = scenario([300, 300, 90, 300], [300, 1, 1, 20], dim=16)
    query = random_query(step, 4)
    whole = attend(step, query)
    monkeypatch.setattr("octavo_kernels.reference.attention_tiles.SCRATCH_ELEMENTS", 1)
    assert torch.equal(attend(step, query), whole)


def test_nan_in_slots_that_nobody_has_written_is_not_seen() -> None:
    step = scenario([20], [1])
    query = random_query(step, 2)
    clean = attend(step, query)
    last_page = int(step.block_table[0, 1, 0])
    for pages in (step.k_pages, step.v_pages):
        pages[last_page, 4:] = float("nan")
        pages[0] = float("nan")
    assert torch.equal(attend(step, query), clean)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_keys_and_values_that_are_no_numbers_show_only_in_the_tokens_that_see_them(value: float) -> None:
    step = scenario([40], [40])
    query = random_query(step, 4).abs() + 0.1
    clean = attend(step, query)
    page = int(step.block_table[0, 1, 0])
    step.v_pages[page, 4, 0, 3] = value
    spoilt = attend(step, query)
    seen = torch.zeros(spoilt.shape, dtype=torch.bool)
    seen[20:, :2, 3] = True
    assert torch.equal(spoilt[~seen], clean[~seen])
    assert torch.equal(spoilt[seen], torch.full_like(spoilt[seen], value)) or spoilt[seen].isnan().all()
    assert spoilt[seen].isnan().all() == (value != value)
    step.v_pages[page, 5, 0, 3] = -value
    assert attend(step, query)[21:, :2, 3].isnan().all()
    step = scenario([40], [40])
    step.k_pages[page, 4, 1, 3] = value
    spoilt = attend(step, query)
    assert torch.equal(spoilt[:20], clean[:20])
    assert torch.equal(spoilt[:, :2], clean[:, :2])
    if value == -torch.inf:
        # A share of zero, as if the key were hidden.
        assert spoilt[21:].isfinite().all()
    else:
        assert spoilt[20:, 2:].isnan().all()


def test_a_query_that_is_no_number_spoils_its_own_head_alone() -> None:
    step = scenario([40], [3])
    query = random_query(step, 4)
    clean = attend(step, query)
    query[1, 2, 0] = torch.nan
    spoilt = attend(step, query)
    assert spoilt[1, 2].isnan().all()
    spoilt[1, 2] = clean[1, 2]
    assert torch.equal(spoilt, clean)


@pytest.mark.parametrize("page", [-1, 10**6, 2**31 - 1, -(2**31)])
def test_a_page_outside_the_pool_reads_the_null_page(page: int) -> None:
    step = scenario([20], [1])
    query = random_query(step, 2)
    step.block_table[0, 0, 0] = page
    outside = attend(step, query)
    step.block_table[0, 0, 0] = 0
    assert torch.equal(outside, attend(step, query))


def test_a_foreign_page_changes_the_answer_so_the_comparison_can_fail() -> None:
    step = scenario([40, 40], [1, 1])
    query = random_query(step, 2)
    step.block_table[0, 0] = step.block_table[1, 0]
    assert (attend(step, query) - torch_attention(step, query))[0].abs().max() > 100 * TOLERANCE


def test_inputs_that_cannot_be_taken_are_named() -> None:
    step = scenario([20], [1])
    query = random_query(step, 2)
    with pytest.raises(KernelInputError, match=r"query is torch\.bfloat16, needed torch\.float32"):
        attend(step, query.bfloat16())
    with pytest.raises(KernelInputError, match="query has 3 heads, needed a multiple of 2 KV heads"):
        attend(step, random_query(step, 3))
    with pytest.raises(KernelInputError, match=r"k_pages has shape .* needed \[any, any, any, 4\]"):
        attend(step, random_query(step, 2)[..., :4])
    with pytest.raises(KernelInputError, match=r"v_scale has shape \[3\], needed \[2\]"):
        attend(step, query, ONE, torch.ones(3))
    with pytest.raises(KernelInputError, match=r"k_scale is per token and head, is torch\.bfloat16"):
        attend(step, query, torch.ones(step.k_pages.shape[:3]))
    step.context_lens[0] = 100
    with pytest.raises(KernelInputError, match="context_lens reaches 100, the block table holds 48 tokens"):
        attend(step, query)


def test_an_empty_batch_and_an_empty_row_are_answered() -> None:
    step = scenario([20, 5], [0, 2])
    query = random_query(step, 2)
    assert_close(attend(step, query), torch_attention(step, query), within=TOLERANCE)
    nothing = scenario([20], [0])
    assert attend(nothing, random_query(nothing, 2)).shape == (0, 2, 8)
