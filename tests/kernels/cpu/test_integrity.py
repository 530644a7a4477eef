"""The integrity checks in C leave the very words of the reference, for sound rows and for every planted fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.integrity import check_rows, conclude
from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.verdict import UNCONCLUDED, is_clean
from octavo_kernels.reference import integrity as reference
from tests.kernels.paged import Scenario, scenario
from tests.kernels.reference.test_integrity import FAULTS

pytestmark = pytest.mark.usefixtures("each_variant")

STEP = 7


def checked(step: Scenario) -> dict[str, Any]:
    return {
        "block_table": step.block_table,
        "query_start": step.query_start,
        "context_lens": step.context_lens,
        "nonces": step.nonces,
        "bindings": step.bindings,
        "page_tags": step.tags,
        "page_places": step.places,
        "page_size": step.page_size,
    }


def concluded(step: Scenario) -> dict[str, Any]:
    names = ("block_table", "context_lens", "page_places", "page_size")
    return {name: value for name, value in checked(step).items() if name in names} | {"step": STEP}


def assert_same_words(step: Scenario) -> list[int]:
    """After the check, and after the conclusion with and without the step's tokens stored."""
    got, expected = step.verdict.clone(), step.verdict.clone()
    check_rows(**checked(step), verdict=got)
    reference.check_rows(**checked(step), verdict=expected)
    assert torch.equal(got, expected)
    unstored = got.clone()
    conclude(**concluded(step), verdict=unstored)
    reference.conclude(**concluded(step), verdict=expected)
    assert torch.equal(unstored, expected)
    step.fill.fill_(step.page_size)
    expected = got.clone()
    conclude(**concluded(step), verdict=got)
    reference.conclude(**concluded(step), verdict=expected)
    assert torch.equal(got, expected)
    words: list[int] = got.tolist()
    return words


@settings(deadline=None, max_examples=20)
@given(
    contexts=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    page_size=st.sampled_from([1, 3, 16, 64]),
    share=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**20),
)
def test_sound_rows_are_clean(contexts: list[int], page_size: int, share: float, seed: int) -> None:
    new = [max(1, int(context * share)) for context in contexts]
    words = assert_same_words(scenario(contexts, new, page_size=page_size, seed=seed))
    assert all(is_clean(word, STEP) for word in words)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.__name__))
def test_every_fault_leaves_the_words_of_the_reference(fault: Callable[[Scenario], None]) -> None:
    step = scenario([40, 40, 50], [1, 1, 20])
    fault(step)
    words = assert_same_words(step)
    assert [is_clean(word, STEP) for word in words] == [False, True, True]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 20), st.integers(0, 31)), min_size=1, max_size=4))
def test_flipped_bits_anywhere_leave_the_words_of_the_reference(flips: list[tuple[int, int, int]]) -> None:
    step = scenario([40, 40, 50], [1, 1, 20])
    tensors = (
        *(step.block_table, step.tags, step.places, step.context_lens, step.nonces),
        *(step.query_start, step.bindings, step.verdict),
    )
    for which, place, bit in flips:
        flat = tensors[which].view(-1)
        flat[place % flat.numel()] ^= torch.tensor(1, dtype=flat.dtype) << min(bit, 30)
    step.query_start.clamp_(-(2**29), 2**29)
    step.context_lens.clamp_(-(2**29), 2**29)
    assert_same_words(step)


@pytest.mark.usefixtures("two_threads")
def test_many_rows_on_two_threads() -> None:
    step = scenario([40] * 3, [1] * 3)
    rows, pages = 3000, step.block_table.shape[1]
    repeated = {
        name: value.repeat(1000, *(1 for _ in value.shape[1:]))
        if name in ("block_table", "context_lens", "nonces", "bindings")
        else value
        for name, value in checked(step).items()
        if isinstance(value, torch.Tensor)
    } | {"query_start": torch.arange(rows + 1, dtype=torch.int32)}
    wide = torch.zeros((rows, 32, 2), dtype=torch.int32)
    wide[:, :pages] = repeated["block_table"]
    wide[1234, 0, 1] += 2
    got = torch.zeros(rows, dtype=torch.int32)
    check_rows(**repeated | {"block_table": wide}, page_size=step.page_size, verdict=got)
    assert torch.nonzero(got != UNCONCLUDED).flatten().tolist() == [1234]


def test_no_rows_and_no_pages_in_the_table() -> None:
    nothing = scenario([20], [1]).only(0)
    empty = torch.zeros(0, dtype=torch.int32)
    check_rows(
        **checked(nothing)
        | {
            "block_table": nothing.block_table[:0],
            "query_start": torch.zeros(1, dtype=torch.int32),
            "context_lens": empty,
            "nonces": empty,
            "bindings": empty.long(),
        },
        verdict=empty,
    )
    narrow = checked(nothing) | {"block_table": nothing.block_table[:, :0]}
    got, expected = nothing.verdict.clone(), nothing.verdict.clone()
    check_rows(**narrow, verdict=got)
    reference.check_rows(**narrow, verdict=expected)
    assert torch.equal(got, expected)


def test_inputs_that_cannot_be_taken_are_named() -> None:
    step = scenario([20], [1])
    refused: dict[str, dict[str, Any]] = {
        r"bindings is torch\.int32": {"bindings": step.bindings.int()},
        r"page_tags has shape \[1\]": {"page_tags": step.tags[:1]},
        "block_table is not contiguous": {"block_table": step.block_table.repeat(1, 2, 1)[:, ::2]},
        "page_size is 0": {"page_size": 0},
        r"context_lens has shape \[0\]": {"context_lens": step.context_lens[:0]},
    }
    for message, changed in refused.items():
        with pytest.raises(KernelInputError, match=message):
            check_rows(**checked(step) | changed, verdict=step.verdict)
    with pytest.raises(KernelInputError, match=r"verdict is torch\.int64"):
        conclude(**concluded(step), verdict=step.verdict.long())
    for step_number in (0, 1 << 31):
        with pytest.raises(KernelInputError, match=f"step is {step_number}, needed 1 to"):
            conclude(**concluded(step) | {"step": step_number}, verdict=step.verdict)
