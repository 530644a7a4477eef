"""From schedule to arrays: what a step tells of the block table is exactly what changed."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.buffers import StepBuffers
from octavo_runtime.engine.executor import NO_DIGESTS
from octavo_runtime.engine.host_step import HostStep, PreparedStep
from octavo_runtime.engine.messages import Sampling, Submit
from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.engine.schedule import ScheduledRow
from octavo_runtime.kv.holding import Holding
from octavo_runtime.kv.pages import NULL_PAGE

PAGE_SIZE = 4
SLOTS = 4
CPU = torch.device("cpu")


def request_of(order: int, tokens: Sequence[int], *, pages: int = 1, slot: int = 0, computed: int = 0) -> EngineRequest:
    """A running request with pages 100 * order, 100 * order + 1, ..."""
    sampling = Sampling(temperature=order / 2, top_p=0.5, top_k=order, seed=7 * order)
    (request,) = EngineRequest.answers(Submit(f"r{order}", list(tokens), 9, sampling, []), order, 0.0)
    request.holding = Holding(nonce=(1 << 32) - 1 - order)
    give_pages(request, pages)
    request.slot, request.computed = slot, computed
    return request


def give_pages(request: EngineRequest, pages: int) -> None:
    assert request.holding is not None
    for logical in range(len(request.holding.pages), pages):
        request.holding.append(100 * request.order + logical, (1 << 32) - 2)


def row_of(request: EngineRequest, count: int) -> ScheduledRow:
    assert request.slot is not None
    return ScheduledRow(request, request.slot, request.computed, count, samples=count == request.pending)


def slots_of(*requests: EngineRequest) -> list[EngineRequest | None]:
    slots: list[EngineRequest | None] = [None] * SLOTS
    for request in requests:
        assert request.slot is not None
        slots[request.slot] = request
    return slots


def build(builder: BatchBuilder, *rows: ScheduledRow, waiting: Sequence[EngineRequest] = ()) -> PreparedStep:
    return builder.build(1, rows, slots_of(*(row.request for row in rows), *waiting))


def test_rows_are_slots_and_a_slot_that_does_not_run_is_an_empty_row() -> None:
    first = request_of(1, range(10, 16), pages=2, slot=2, computed=4)
    second = request_of(2, [20, 21, 22], slot=0)
    host = build(BatchBuilder(SLOTS), row_of(first, 2), row_of(second, 2)).host
    assert host.token_ids.tolist() == [20, 21, 14, 15]
    assert host.positions.tolist() == [0, 1, 4, 5]
    assert host.token_rows.tolist() == [0, 0, 2, 2]
    assert host.query_start.tolist() == [0, 2, 2, 4]
    assert host.context_lens.tolist() == [2, 0, 6]
    assert host.nonces.tolist() == [-3, 0, -2]
    assert first.holding is not None
    assert second.holding is not None
    assert host.bindings.tolist() == [second.holding.binding, 0, first.holding.binding]


def test_only_the_rows_that_run_their_last_known_token_sample() -> None:
    first, second = request_of(1, [1, 2, 3], slot=1), request_of(2, [4, 5, 6], slot=0)
    prepared = build(BatchBuilder(SLOTS), row_of(first, 3), row_of(second, 2))
    host = prepared.host
    assert [row.request for row in prepared.sampling] == [first]
    assert (host.sample_tokens.tolist(), host.sample_rows.tolist()) == ([4], [1])
    assert (host.sampling.temperature.tolist(), host.sampling.top_k.tolist()) == ([0.5], [1])
    assert (host.sampling.top_p.tolist(), host.sampling.seed.tolist()) == ([0.5], [7])
    assert host.sampling.position.tolist() == [3], "the index of the token to be drawn"


def test_only_new_pairs_are_told() -> None:
    request = request_of(1, range(12), pages=2)
    builder = BatchBuilder(SLOTS)
    table = build(builder, row_of(request, 8)).host.table
    assert table.pairs.tolist() == [[100, -2], [101, -2]]
    assert build(builder, row_of(request, 8)).host.table.rows.tolist() == []
    give_pages(request, 3)
    table = build(builder, row_of(request, 8)).host.table
    assert (table.rows.tolist(), table.columns.tolist(), table.pairs.tolist()) == ([0], [2], [[102, -2]])


def test_the_row_of_a_request_that_left_is_cleared_and_given_to_the_next() -> None:
    builder = BatchBuilder(SLOTS)
    gone, stays = request_of(1, [1, 2], slot=0), request_of(2, [3, 4], slot=1)
    build(builder, row_of(gone, 2), row_of(stays, 2))
    host = build(builder, row_of(stays, 2)).host
    assert (host.table.cleared.tolist(), host.nonces.tolist()) == ([0], [0, -3])
    assert host.bindings[0] == 0
    host = build(builder, row_of(request_of(3, [5], slot=0), 1), row_of(stays, 2)).host
    assert (host.table.cleared.tolist(), host.table.rows.tolist()) == ([], [0])


def test_a_request_that_does_not_run_in_this_step_keeps_its_row() -> None:
    builder = BatchBuilder(SLOTS)
    waits, runs = request_of(1, [1, 2], slot=0), request_of(2, [3, 4], slot=1)
    build(builder, row_of(waits, 1), row_of(runs, 2))
    host = build(builder, row_of(runs, 2), waiting=[waits]).host
    assert host.table.cleared.tolist() == []
    assert (host.query_start.tolist(), host.context_lens.tolist()) == ([0, 0, 2], [0, 2])
    assert host.nonces.tolist() == [-2, -3]


def test_the_table_grows_by_powers_of_two_and_one_long_request_does_not_cost_for_ever() -> None:
    builder = BatchBuilder(SLOTS)
    short, long = request_of(1, range(100), pages=3, slot=0), request_of(2, range(100), pages=20, slot=1)
    assert build(builder, row_of(short, 9)).host.table.width == 4
    assert build(builder, row_of(short, 9), row_of(long, 9)).host.table.width == 32
    give_pages(short, 8)
    assert build(builder, row_of(short, 9)).host.table.width == 32
    assert build(builder, row_of(request_of(3, range(100), pages=7, slot=0), 9)).host.table.width == 8


def test_a_decoding_step_is_padded_to_the_next_size() -> None:
    builder = BatchBuilder(SLOTS, pad_decode_to=(2, 8))
    assert builder.max_rows == 8
    one, two = request_of(1, [1, 2], computed=1, slot=0), request_of(2, [3, 4, 5], computed=2, slot=2)
    assert build(builder, row_of(one, 1)).padding == (1,)
    prepared = build(builder, row_of(one, 1), row_of(two, 1))
    assert prepared.padding == (1, 3, 4, 5, 6, 7)
    host = prepared.host
    assert (host.num_rows, host.num_tokens) == (8, 8)
    assert (host.token_ids.tolist(), host.positions.tolist()) == ([2, 0, 5, 0, 0, 0, 0, 0], [1, 0, 2, 0, 0, 0, 0, 0])
    assert (host.context_lens.tolist(), host.token_rows.tolist()) == ([2, 0, 3, 0, 0, 0, 0, 0], list(range(8)))
    assert host.sample_rows.tolist() == list(range(8)), "the shape of a captured graph is always the same"
    assert [row.request for row in prepared.sampling] == [one, two]


@pytest.mark.parametrize("slot", [0, 1, SLOTS + 1])
def test_a_damaged_row_is_written_anew_once_whoever_it_belongs_to(slot: int) -> None:
    builder = BatchBuilder(SLOTS, pad_decode_to=(8,))
    one = request_of(1, [1, 2], computed=1)
    build(builder, row_of(one, 1))
    builder.rewrite(slot)
    table = build(builder, row_of(one, 1)).host.table
    assert (table.cleared.tolist(), table.rows.tolist()) == ([slot], [0] if slot == 0 else [])
    assert not len(build(builder, row_of(one, 1)).host.table.cleared)


def test_a_step_with_a_prompt_or_a_request_that_waits_is_not_padded() -> None:
    builder = BatchBuilder(SLOTS, pad_decode_to=(4,))
    prompt, decodes = request_of(1, [1, 2, 3]), request_of(2, [3, 4], computed=1, slot=1)
    assert build(builder, row_of(prompt, 3), row_of(decodes, 1)).padding == ()
    assert build(builder, row_of(decodes, 1), waiting=[prompt]).padding == ()
    assert build(builder, row_of(decodes, 1)).padding == (0, 2, 3)


def test_what_the_ranks_need_of_a_step_travels_as_bytes() -> None:
    host = build(BatchBuilder(SLOTS), row_of(request_of(1, range(5)), 5)).host
    there = pickle.loads(pickle.dumps(host))
    assert isinstance(there, HostStep)
    assert there.token_ids.tolist() == host.token_ids.tolist()
    assert there.table.pairs.tolist() == host.table.pairs.tolist()
    assert len(pickle.dumps(host)) < 4000


Move = tuple[int, int]
"""(slot, pages): the request in the slot grows to so many pages; 0 is that it leaves."""


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(0, 40)), max_size=4), max_size=12))
def test_a_device_that_follows_the_changes_has_the_table_of_what_is_held(steps: list[list[Move]]) -> None:
    builder, buffers = BatchBuilder(SLOTS), StepBuffers(SLOTS, 64, 0, CPU)
    running: dict[int, EngineRequest] = {}
    order = 0
    for moves in steps:
        for slot, pages in moves:
            if not pages:
                running.pop(slot, None)
            elif slot in running:
                give_pages(running[slot], pages)
            else:
                order += 1
                running[slot] = request_of(order, [1], pages=pages, slot=slot)
        if running:
            prepared = build(builder, *(row_of(request, 1) for request in running.values()))
            batch = buffers.load(prepared.host, NO_DIGESTS.pages, PAGE_SIZE).batch
            assert batch.block_table.is_contiguous()
            assert_table(batch.block_table, running)
            assert batch.nonces.tolist() == prepared.host.nonces.tolist()
            assert batch.bindings.tolist() == prepared.host.bindings.tolist()


def assert_table(table: torch.Tensor, running: dict[int, EngineRequest]) -> None:
    expected = np.zeros(table.shape, np.int32)
    expected[..., 0] = NULL_PAGE
    for slot, request in running.items():
        assert request.holding is not None
        expected[slot, : len(request.holding.pages)] = [(page, -2) for page in request.holding.pages]
    assert table.tolist() == expected.tolist()


def test_buffers_are_the_same_memory_in_every_step() -> None:
    builder, buffers = BatchBuilder(SLOTS), StepBuffers(SLOTS, 64, 0, CPU)
    request = request_of(1, range(9), pages=2)
    pointers = set()
    for count in (3, 4):
        prepared = build(builder, row_of(request, count))
        batch = buffers.load(prepared.host, NO_DIGESTS.pages, PAGE_SIZE).batch
        tensors = (batch.token_ids, batch.positions, batch.query_start, batch.block_table, batch.verdict)
        pointers.add(tuple(tensor.data_ptr() for tensor in tensors))
    assert len(pointers) == 1


@pytest.mark.parametrize("left_over", [1, 5])
def test_a_step_starts_without_the_verdicts_of_the_one_before(left_over: int) -> None:
    builder, buffers = BatchBuilder(SLOTS), StepBuffers(SLOTS, 64, 0, CPU)
    prepared = build(builder, row_of(request_of(1, range(9), pages=2), 3))
    buffers.load(prepared.host, NO_DIGESTS.pages, PAGE_SIZE).batch.verdict.fill_(left_over)
    assert buffers.load(prepared.host, NO_DIGESTS.pages, PAGE_SIZE).batch.verdict.tolist() == [0]
