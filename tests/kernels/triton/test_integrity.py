"""The integrity check in Triton leaves the very words that the reference leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.binding import mix as mix_of_integers
from octavo_kernels.formats.verdict import UNCONCLUDED, is_clean
from octavo_kernels.reference import integrity as reference
from octavo_kernels.triton import integrity
from tests.kernels.paged import Scenario, scenario
from tests.kernels.reference.test_integrity import FAULTS, STEP, three_rows

WORDS = st.integers(-(2**31), 2**31 - 1)


def records(step: Scenario) -> dict[str, torch.Tensor]:
    return {
        "block_table": step.block_table,
        "query_start": step.query_start,
        "context_lens": step.context_lens,
        "nonces": step.nonces,
        "bindings": step.bindings,
        "page_tags": step.tags,
        "page_places": step.places,
    }


def check_words(step: Scenario) -> list[int]:
    """The words of both, which must be equal."""
    expected = step.verdict.clone()
    reference.check_rows(**records(step), page_size=step.page_size, verdict=expected)
    integrity.check_rows(**records(step), page_size=step.page_size, verdict=step.verdict)
    assert step.verdict.tolist() == expected.tolist()
    return expected.tolist()


def conclusion(step: Scenario) -> list[int]:
    """The words of both after `conclude`, which must be equal."""
    tensors = {name: records(step)[name] for name in ("block_table", "context_lens", "page_places")}
    expected = step.verdict.clone()
    reference.conclude(**tensors, page_size=step.page_size, step=STEP, verdict=expected)
    integrity.conclude(**tensors, page_size=step.page_size, step=STEP, verdict=step.verdict)
    assert step.verdict.tolist() == expected.tolist()
    return expected.tolist()


def fill_pages(step: Scenario) -> None:
    """What the last layer's KV write does when nothing is wrong."""
    for row, position in zip(step.token_rows.tolist(), step.positions.tolist(), strict=True):
        page = step.block_table[row, position // step.page_size, 0]
        step.fill[page] = max(int(step.fill[page]), position % step.page_size + 1)


@settings(deadline=None, max_examples=5)
@given(
    contexts=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    page_size=st.sampled_from([1, 3, 16, 64]),
    share=st.floats(0.0, 1.0),
)
def test_sound_rows_are_clean(contexts: list[int], page_size: int, share: float) -> None:
    step = scenario(contexts, [max(1, int(context * share)) for context in contexts], page_size=page_size)
    assert check_words(step) == [UNCONCLUDED] * len(contexts)
    fill_pages(step)
    assert all(is_clean(word, STEP) for word in conclusion(step))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_leaves_the_word_of_the_reference(fault: Callable[[Scenario], None]) -> None:
    step = three_rows()
    fault(step)
    words = check_words(step)
    assert words[1:] == [UNCONCLUDED] * 2
    step.fill[1:] = step.page_size
    conclusion(step)


@settings(deadline=None, max_examples=8)
@given(row=st.integers(0, 2), entry=st.integers(0, 3), part=st.integers(0, 1), word=WORDS)
def test_any_word_in_a_block_table_leaves_the_word_of_the_reference(row: int, entry: int, part: int, word: int) -> None:
    step = three_rows()
    step.block_table[row, entry, part] = word
    check_words(step)


@settings(deadline=None, max_examples=6)
@given(context=WORDS, start=st.integers(-5, 5), place=WORDS)
def test_any_length_and_place_leaves_the_word_of_the_reference(context: int, start: int, place: int) -> None:
    step = three_rows()
    step.context_lens[1] = context
    step.query_start[1] += start
    step.places[step.block_table[0, 1, 0]] = place
    check_words(step)
    conclusion(step)


def test_a_row_of_more_pages_than_are_looked_at_at_once_is_checked_to_its_end() -> None:
    pages = integrity.PAIRS_AT_ONCE + 5
    assert check_words(scenario([pages], [1], page_size=1)) == [UNCONCLUDED]
    step = scenario([pages], [1], page_size=1)
    step.block_table[0, pages - 1, 1] += 2
    assert check_words(step) != [UNCONCLUDED]


@settings(deadline=None, max_examples=6)
@given(nonce=WORDS, page=WORDS, tag=WORDS)
def test_the_binding_is_the_sum_of_the_host(nonce: int, page: int, tag: int) -> None:
    step = scenario([5], [1])
    step.nonces[0], step.block_table[0, 0, 0], step.block_table[0, 0, 1] = nonce, page, tag
    step.bindings[0] = mix_of_integers(nonce, 0, page, tag) if (page, tag) != (0, 0) else 0
    word = check_words(step)[0]
    assert not word & 16


@pytest.mark.parametrize("word", [0, STEP - 1, STEP, UNCONCLUDED | 2, 5])
def test_only_the_exact_word_of_a_checked_row_concludes(word: int) -> None:
    step = three_rows()
    fill_pages(step)
    step.verdict.fill_(word)
    assert conclusion(step) == [word] * 3


def test_a_page_that_the_last_layer_did_not_fill_is_found() -> None:
    step = three_rows()
    check_words(step)
    assert not any(is_clean(word, STEP) for word in conclusion(step))


def test_no_rows_need_no_launch() -> None:
    step = three_rows().only(0)
    none = {
        name: tensor if name.startswith("page_") else tensor[: 1 if name == "query_start" else 0]
        for name, tensor in records(step).items()
    }
    integrity.check_rows(**none, page_size=16, verdict=step.verdict[:0])


@pytest.mark.parametrize(
    ("name", "dtype"), [("block_table", torch.int64), ("bindings", torch.int32), ("page_tags", torch.int64)]
)
def test_wrong_dtypes_are_refused_by_name(name: str, dtype: torch.dtype) -> None:
    step = three_rows()
    tensors = copy.copy(records(step))
    tensors[name] = tensors[name].to(dtype)
    with pytest.raises(KernelInputError, match=f"{name} is {dtype}"):
        integrity.check_rows(**tensors, page_size=16, verdict=step.verdict)


def test_a_page_larger_than_its_fill_mark_counts_is_refused() -> None:
    step = three_rows()
    with pytest.raises(KernelInputError, match="page_size is 256"):
        integrity.check_rows(**records(step), page_size=256, verdict=step.verdict)


def test_a_table_with_gaps_is_refused() -> None:
    step = three_rows()
    tensors = records(step) | {"block_table": step.block_table.repeat(1, 2, 1)[:, ::2]}
    with pytest.raises(KernelInputError, match="block_table is not contiguous"):
        integrity.check_rows(**tensors, page_size=16, verdict=step.verdict)
