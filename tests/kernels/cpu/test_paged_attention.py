"""Paged attention in C equals the reference on every instruction set, and a token's bits are its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.paged_attention import paged_attention
from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.paged_attention import paged_attention as reference
from tests.kernels.close import assert_close
from tests.kernels.paged import Scenario, scenario

pytestmark = pytest.mark.usefixtures("each_variant")

TOLERANCE = 5e-6
"""Two float32 attentions over values of size one; measured 1e-6 over 4,000 keys."""
ONE = torch.ones(())
FP8 = torch.float8_e4m3fn


def random_query(step: Scenario, heads: int, seed: int = 1) -> torch.Tensor:
    shape = (step.positions.shape[0], heads, step.k_pages.shape[3])
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def arguments(step: Scenario, k_scale: torch.Tensor = ONE, v_scale: torch.Tensor = ONE) -> dict[str, Any]:
    return {
        "k_pages": step.k_pages,
        "v_pages": step.v_pages,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "block_table": step.block_table,
        "query_start": step.query_start,
        "context_lens": step.context_lens,
        "positions": step.positions,
        "softmax_scale": step.k_pages.shape[3] ** -0.5,
    }


def attend(step: Scenario, query: torch.Tensor) -> torch.Tensor:
    return paged_attention(query, **arguments(step))


def scales(step: Scenario, kind: str, seed: int) -> torch.Tensor:
    num_pages, page_size, kv_heads, _ = step.k_pages.shape
    shapes = {"tensor": (), "head": (kv_heads,), "token": (num_pages, page_size, kv_heads)}
    return torch.rand(shapes[kind], generator=torch.Generator().manual_seed(seed)) + 0.5


def chunk(step: Scenario, start: int, end: int) -> Scenario:
    """The step in which only positions `start` to `end` of a one-row step are new, and later ones do not exist."""
    return replace(
        step,
        positions=torch.arange(start, end),
        query_start=torch.tensor([0, end - start], dtype=torch.int32),
        context_lens=torch.tensor([end], dtype=torch.int32),
        token_rows=torch.zeros(end - start, dtype=torch.int64),
    )


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_it_equals_the_reference(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 3, 16, 64]))
    contexts = data.draw(st.lists(st.integers(1, 2 * page_size + 3) | st.integers(1, 100), min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from([torch.bfloat16, FP8]))
    step = scenario(
        contexts,
        [data.draw(st.integers(0, context)) for context in contexts],
        page_size=page_size,
        kv_heads=data.draw(st.integers(1, 2)),
        dim=data.draw(st.sampled_from([1, 2, 7, 16, 34, 64, 80])),
        dtype=dtype,
        seed=data.draw(st.integers(0, 1000)),
    )
    query = random_query(step, step.k_pages.shape[2] * data.draw(st.sampled_from([1, 2, 3, 5, 8, 20])))
    kinds = st.sampled_from(["tensor", "head", "token"] if dtype == FP8 else ["tensor", "head"])
    given_arguments = arguments(step, scales(step, data.draw(kinds), 1), scales(step, data.draw(kinds), 2))
    # Scales up to 1.5 make scores and values larger.
    got, expected = paged_attention(query, **given_arguments), reference(query, **given_arguments)
    assert_close(got, expected, within=2 * TOLERANCE)


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("boundary", [16, 64, 128])
def test_contexts_beside_page_and_tile_boundaries(page_size: int, boundary: int) -> None:
    contexts = [boundary - 1, boundary, boundary + 1, 1]
    for new in ([1] * 4, contexts):
        step = scenario(contexts, new, page_size=page_size, dim=64, dtype=FP8)
        query = random_query(step, 4)
        assert_close(attend(step, query), reference(query, **arguments(step)), within=TOLERANCE)


def test_thousands_of_keys_beside_a_context_of_one() -> None:
    step = scenario([4001, 1, 1023, 1025], [2, 1, 1, 3], page_size=64, dim=32, dtype=FP8)
    query = random_query(step, 8)
    assert_close(attend(step, query), reference(query, **arguments(step)), within=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_a_token_gets_the_same_bits_alone_batched_and_chunked(dtype: torch.dtype, group: int) -> None:
    contexts = [1, 17, 64, 65, 200, 1090]
    new = [1, 17, 64, 65, 200, 100]
    whole = scenario(contexts, new, page_size=16, kv_heads=2, dim=40, dtype=dtype)
    query = random_query(whole, 2 * group)
    together = attend(whole, query)
    for row, context in enumerate(contexts):
        own = slice(int(whole.query_start[row]), int(whole.query_start[row + 1]))
        alone, first = whole.only(row), context - new[row]
        assert torch.equal(attend(alone, query[own]), together[own])
        for start, end in {(first, first + 1), (context - 1, context), (first + new[row] // 3, context)}:
            part = attend(chunk(alone, start, end), query[own][start - first : end - first])
            assert torch.equal(part, together[own][start - first : end - first])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("contexts", "new"), [([3000], [1]), ([2100, 5], [2, 1]), ([300] * 6, [1] * 6), ([500], [300])]
)
def test_two_threads_change_no_bit(contexts: list[int], new: list[int]) -> None:
    step = scenario(contexts, new, kv_heads=2, dim=16, dtype=FP8)
    query = random_query(step, 4)
    by_two = attend(step, query)
    torch.set_num_threads(1)
    assert torch.equal(attend(step, query), by_two)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_nan_beyond_a_tokens_own_position_is_not_seen(dtype: torch.dtype) -> None:
    step = scenario([20, 90], [1, 70], page_size=16, dim=32, dtype=dtype)
    query = random_query(step, 2)
    clean = attend(step, query)
    for pages in (step.k_pages, step.v_pages):
        pages[0] = float("nan")
        pages[int(step.block_table[0, 1, 0]), 4:] = float("nan")
        pages[int(step.block_table[1, 4, 0]), 6:] = float("nan")
    dirty = attend(step, query)
    assert torch.equal(dirty[:51], clean[:51])
    assert dirty[51:].isnan().all()


@pytest.mark.parametrize("dim", [5, 64, 80])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_what_is_no_number_shows_where_the_reference_shows_it(dim: int, value: float, where: str) -> None:
    step = scenario([70, 12], [20, 3], dim=dim)
    query = random_query(step, 4)
    target = {
        "query": query[3, 1],
        "key": step.k_pages[int(step.block_table[0, 3, 0]), 9, 0],
        "value": step.v_pages[int(step.block_table[0, 3, 0]), 9, 0],
    }[where]
    target[dim - 1] = value
    got, expected = attend(step, query), reference(query, **arguments(step))
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert torch.equal(got.isinf(), expected.isinf())
    assert_close(got.nan_to_num(), expected.nan_to_num(), within=TOLERANCE)


def test_large_scores_do_not_overflow() -> None:
    step = scenario([200], [200], dim=32)
    query = random_query(step, 2)
    assert attend(step, query * 1e30).isfinite().all()
    # Scores of size 300 have steps of 3e-5, which exp turns into as much relative error.
    assert_close(attend(step, query * 100), reference(query * 100, **arguments(step)), within=1e-3)


@pytest.mark.parametrize("page", [-1, 10**6, 2**31 - 1, -(2**31)])
def test_a_page_outside_the_pool_reads_the_null_page(page: int) -> None:
    step = scenario([20], [1])
    query = random_query(step, 2)
    step.block_table[0, 0, 0] = page
    assert_close(attend(step, query), reference(query, **arguments(step)), within=100 * TOLERANCE)
    outside = attend(step, query)
    step.block_table[0, 0, 0] = 0
    assert torch.equal(outside, attend(step, query))


def test_an_empty_batch_an_empty_row_and_an_empty_context_are_answered() -> None:
    step = scenario([20, 5], [0, 2])
    query = random_query(step, 2)
    assert_close(attend(step, query), reference(query, **arguments(step)), within=TOLERANCE)
    step.context_lens[1] = 0
    assert torch.equal(attend(step, query), torch.zeros_like(query))
    nothing = scenario([20], [0])
    assert attend(nothing, random_query(nothing, 2)).shape == (0, 2, 8)
    assert paged_attention(
        query[:0], **arguments(step) | {"positions": step.positions[:0], "query_start": step.query_start * 0}
    ).shape == (0, 2, 8)


def test_row_bounds_and_positions_of_nobody_are_no_address() -> None:
    step = scenario([20, 5], [1, 2])
    query = random_query(step, 2)
    step.query_start.copy_(torch.tensor([-5, 10**6, 2**31 - 1]))
    step.positions[0] = 2**62
    assert attend(step, query).shape == query.shape


def test_inputs_that_cannot_be_taken_are_named() -> None:
    step = scenario([20], [1])
    query = random_query(step, 2)
    good = arguments(step)
    refused = {
        r"query is torch\.bfloat16, needed torch\.float32": (query.bfloat16(), {}),
        "query has 3 heads, needed a multiple of 2 KV heads": (random_query(step, 3), {}),
        r"k_pages has shape .* needed \[any, any, any, 4\]": (query[..., :4].contiguous(), {}),
        "query is not contiguous": (query.repeat(1, 1, 2)[..., ::2], {}),
        "k_pages is not contiguous": (query, {"k_pages": step.k_pages.transpose(0, 1).contiguous().transpose(0, 1)}),
        "block_table is not contiguous": (query, {"block_table": step.block_table.repeat(1, 2, 1)[:, ::2]}),
        r"positions is torch\.int32": (query, {"positions": step.positions.int()}),
        r"query_start has shape \[1\]": (query, {"query_start": step.query_start[:1]}),
        "context_lens reaches 100, the block table holds 48 tokens": (
            query,
            {"context_lens": torch.tensor([100], dtype=torch.int32)},
        ),
    }
    for message, (given_query, changed) in refused.items():
        with pytest.raises(KernelInputError, match=message):
            paged_attention(given_query, **good | changed)
