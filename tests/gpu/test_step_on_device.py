"""Between the upload of a step's tables and its verdict nothing waits for the device, and a step fits a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from octavo_kernels.formats.place import place_of
from tests.kernels.triton.decode_step import STEP, decode_step

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="only a CUDA device can be waited for or captured"
)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """torch itself raises where it waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@needs_cuda
def test_a_step_does_not_synchronise() -> None:
    step = decode_step()
    step.run()
    torch.cuda.synchronize()
    with no_synchronisation():
        _, verdict = step.run()
    assert verdict.tolist() == [STEP] * step.pool.rows


@needs_cuda
def test_a_captured_step_gives_the_bits_of_the_step_itself() -> None:
    step = decode_step()
    expected = step.run()[0].clone()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step.run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, verdict = step.run()
    graph.replay()
    assert torch.equal(out, expected)
    assert verdict.tolist() == [STEP] * step.pool.rows


@needs_cuda
def test_a_captured_step_takes_shorter_contexts_and_faults_that_came_later() -> None:
    step = decode_step((32, 48, 48, 300))
    step.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, verdict = step.run()
    pool = step.pool
    pool.context_lens[1] = 40
    pool.positions[1] = 39
    step.places_before[pool.block_table[1, 2, 0]] = place_of(2, 7)
    pool.tags[pool.block_table[2, 0, 0]] += 2
    graph.replay()
    captured, words = out.clone(), verdict.tolist()
    eager, eager_words = step.run()
    assert torch.equal(captured[[0, 1, 3]], eager[[0, 1, 3]])
    assert words == eager_words.tolist()
    assert [word == STEP for word in words] == [True, True, False, True]
