"""Integrity: a clean row gets the step number; every fault it claims to see, and every check left out, does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.formats.place import place_of
from octavo_kernels.formats.verdict import Finding, findings_of, is_clean
from octavo_kernels.reference.integrity import check_rows, conclude
from octavo_kernels.reference.kv_write import kv_write
from tests.kernels.paged import Scenario, scenario

STEP = 7
LAYERS = 2


def check(step: Scenario) -> None:
    check_rows(
        block_table=step.block_table,
        query_start=step.query_start,
        context_lens=step.context_lens,
        nonces=step.nonces,
        bindings=step.bindings,
        page_tags=step.tags,
        page_places=step.places,
        page_size=step.page_size,
        verdict=step.verdict,
    )


def store(step: Scenario, layer: int) -> None:
    rows = torch.ones((step.positions.shape[0], *step.k_pages.shape[2:]))
    kv_write(
        rows,
        rows,
        k_pages=step.k_pages,
        v_pages=step.v_pages,
        k_scale=torch.ones(()),
        v_scale=torch.ones(()),
        block_table=step.block_table,
        token_rows=step.token_rows,
        positions=step.positions,
        nonces=step.nonces,
        page_tags=step.tags,
        page_writers=step.writers,
        page_places=step.places,
        verdict=step.verdict,
        last_layer=layer == LAYERS - 1,
    )


def finish(step: Scenario, number: int = STEP) -> None:
    conclude(
        block_table=step.block_table,
        context_lens=step.context_lens,
        page_places=step.places,
        page_size=step.page_size,
        step=number,
        verdict=step.verdict,
    )


def run(step: Scenario) -> list[bool]:
    """One whole step; which rows are clean."""
    check(step)
    for layer in range(LAYERS):
        store(step, layer)
    finish(step)
    return [is_clean(word, STEP) for word in step.verdict.tolist()]


def three_rows() -> Scenario:
    """Row 0 decodes in its third page, row 1 decodes, row 2 prefills a chunk across a page boundary."""
    return scenario([40, 40, 50], [1, 1, 20])


@settings(deadline=None, max_examples=40)
@given(
    contexts=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    page_size=st.sampled_from([1, 3, 16, 64]),
    share=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**20),
)
def test_sound_rows_are_clean(contexts: list[int], page_size: int, share: float, seed: int) -> None:
    new = [max(1, int(context * share)) for context in contexts]
    assert all(run(scenario(contexts, new, page_size=page_size, seed=seed)))


def test_pages_held_ahead_of_the_context_are_allowed_and_checked() -> None:
    step = scenario([40], [1])
    ahead = scenario([40], [1])
    for each in (step, ahead):
        each.context_lens[0] = 20
        each.positions[0] = 19
        first, second, third = each.block_table[0, :3, 0].tolist()
        each.fill[first], each.fill[second], each.fill[third] = 16, 3, 0
    assert run(step) == [True]
    ahead.tags[ahead.block_table[0, 2, 0]] += 2
    assert run(ahead) == [False]


# Faults of row 0. Names F1.. as in DESIGN.md, section 6.


def foreign_page(step: Scenario) -> None:
    step.block_table[0, 0, 0] = step.block_table[1, 0, 0]


def foreign_pair(step: Scenario) -> None:
    step.block_table[0, 0] = step.block_table[1, 0]


def foreign_row(step: Scenario) -> None:
    step.block_table[0] = step.block_table[1]


def own_pages_permuted(step: Scenario) -> None:
    step.block_table[0, [0, 1]] = step.block_table[0, [1, 0]]


def own_page_twice(step: Scenario) -> None:
    step.block_table[0, 1] = step.block_table[0, 0]


def freed_page(step: Scenario) -> None:
    step.tags[step.block_table[0, 0, 0]] += 1


def reallocated_page(step: Scenario) -> None:
    page = step.block_table[0, 0, 0]
    step.tags[page] += 2
    step.writers[page] = step.nonces[1]


def stale_pair_of_an_older_generation(step: Scenario) -> None:
    step.block_table[0, 0, 1] -= 2


def page_beyond_the_pool(step: Scenario) -> None:
    step.block_table[0, 0, 0] = step.tags.shape[0]


def negative_page(step: Scenario) -> None:
    step.block_table[0, 0, 0] = -1


def null_page(step: Scenario) -> None:
    step.block_table[0, 0] = 0


def last_pair_lost(step: Scenario) -> None:
    step.block_table[0, 2] = 0


def context_longer_than_the_table(step: Scenario) -> None:
    step.context_lens[0] = step.block_table.shape[1] * step.page_size + 1


def additional_pair(step: Scenario) -> None:
    step.block_table[0, 3] = step.block_table[1, 2]


def prior_tokens_not_written(step: Scenario) -> None:
    step.fill[step.block_table[0, 1, 0]] -= 1


def another_requests_nonce(step: Scenario) -> None:
    step.nonces[0] = step.nonces[1]


def binding_of_an_older_row(step: Scenario) -> None:
    step.bindings[0] -= 1


def logical_index_of_another_place(step: Scenario) -> None:
    step.places[step.block_table[0, 1, 0]] += place_of(4, 0)


FAULTS: dict[Callable[[Scenario], None], Finding] = {
    foreign_page: Finding.TAG | Finding.BINDING,
    foreign_pair: Finding.BINDING,
    foreign_row: Finding.BINDING | Finding.WRITER,
    own_pages_permuted: Finding.LOGICAL | Finding.BINDING,
    own_page_twice: Finding.LOGICAL | Finding.BINDING,
    freed_page: Finding.TAG,
    reallocated_page: Finding.TAG,
    stale_pair_of_an_older_generation: Finding.TAG | Finding.BINDING,
    page_beyond_the_pool: Finding.RANGE | Finding.BINDING,
    negative_page: Finding.RANGE | Finding.BINDING,
    null_page: Finding.RANGE | Finding.BINDING,
    last_pair_lost: Finding.RANGE | Finding.BINDING,
    context_longer_than_the_table: Finding.RANGE,
    additional_pair: Finding.LOGICAL | Finding.BINDING,
    prior_tokens_not_written: Finding.FILL,
    another_requests_nonce: Finding.BINDING | Finding.WRITER,
    binding_of_an_older_row: Finding.BINDING,
    logical_index_of_another_place: Finding.LOGICAL,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_faulty_row_is_never_clean_and_its_neighbours_are(fault: Callable[[Scenario], None]) -> None:
    step = three_rows()
    fault(step)
    assert run(step) == [False, True, True]
    assert FAULTS[fault] in findings_of(int(step.verdict[0]), STEP)


@settings(deadline=None, max_examples=100)
@given(
    entry=st.integers(0, 2),
    part=st.integers(0, 1),
    bit=st.integers(0, 31),
)
def test_any_flipped_bit_of_a_block_table_row_is_seen(entry: int, part: int, bit: int) -> None:
    step = three_rows()
    word = int(step.block_table[0, entry, part]) ^ (1 << bit)
    step.block_table[0, entry, part] = word - (1 << 32) if word >> 31 else word
    assert run(step) == [False, True, True]


@settings(deadline=None, max_examples=100)
@given(st.permutations([0, 1, 2, 3, 4]))
def test_any_permutation_of_a_requests_own_pages_is_seen(order: list[int]) -> None:
    step = scenario([80], [1])
    step.block_table[0, :5] = step.block_table[0, order].clone()
    assert run(step) == [order == sorted(order)]


def test_a_refused_store_in_any_layer_spoils_the_verdict() -> None:
    for bad_layer in range(LAYERS):
        step = three_rows()
        check(step)
        for layer in range(LAYERS):
            page = step.block_table[0, 2, 0]
            writer = int(step.writers[page])
            if layer == bad_layer:
                step.writers[page] = 0
            store(step, layer)
            step.writers[page] = writer
        finish(step)
        assert [is_clean(word, STEP) for word in step.verdict.tolist()] == [False, True, True]
        assert Finding.WRITER in findings_of(int(step.verdict[0]), STEP)


def test_leaving_out_the_check_is_a_violation_of_every_row() -> None:
    step = three_rows()
    for layer in range(LAYERS):
        store(step, layer)
    finish(step)
    assert step.verdict.tolist() == [0, 0, 0]


def test_leaving_out_the_conclusion_is_a_violation_of_every_row() -> None:
    step = three_rows()
    check(step)
    for layer in range(LAYERS):
        store(step, layer)
    assert not any(is_clean(word, STEP) for word in step.verdict.tolist())


def test_leaving_out_the_last_layers_store_is_a_violation_of_every_row() -> None:
    step = three_rows()
    check(step)
    store(step, 0)
    finish(step)
    assert all(findings_of(word, STEP) == Finding.FILL for word in step.verdict.tolist())


def test_a_verdict_of_the_step_before_does_not_count() -> None:
    step = three_rows()
    step.verdict.fill_(STEP - 1)
    finish(step)
    assert not any(is_clean(word, STEP) for word in step.verdict.tolist())


def test_a_verdict_left_over_from_another_step_is_overwritten_by_the_check() -> None:
    step = three_rows()
    step.verdict.fill_(STEP)
    foreign_page(step)
    assert run(step) == [False, True, True]
