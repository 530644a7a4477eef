"""Decode steps as CUDA graphs, for real: a small random model answers with them as it does without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("msgspec", reason="the runtime's own libraries")
pytest.importorskip("pydantic", reason="the runtime's own libraries")
pytest.importorskip("safetensors", reason="the runtime's own libraries")

from octavo_kernels.catalogue import operations_for
from octavo_kernels.device import Device
from octavo_kernels.registry import Formats
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, WeightFormat
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.buffers import StepBuffers
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.executor import LocalExecutor
from octavo_runtime.engine.graphs import CudaCapture, DecodeGraphs
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.load import load_model
from tests.runtime.engine.rig import rig_of
from tests.runtime.qwen3_moe_files import Shape, write

SEQS, PAGES, PAGE_SIZE, TOKENS = 4, 64, 16, 64

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="only a CUDA device records graphs")


@pytest.fixture(autouse=True)
def on_device() -> None:
    """In the place of the fixture for all other tests here: an engine has tensors on both sides and says where."""


def answers(path: Path, device: torch.device, graphs: DecodeGraphs | None) -> dict[str, list[int]]:
    """Greedy answers of three requests, one of which comes later."""
    facts = read_facts(path)
    layout = ParallelLayout.of(facts, 1)
    weights, kv = WeightFormat.INT4, KvFormat.FP8
    operations = operations_for(Device.of(device), Formats(weights, kv))
    model = load_model(path, facts, layout, weights, device, operations=operations)
    cache = KvCache.allocate(facts, layout, kv, PAGES + 1, PAGE_SIZE, device)
    rig = rig_of(pages=PAGES, page_size=PAGE_SIZE, seqs=SEQS, tokens_per_step=TOKENS)
    builder = BatchBuilder(SEQS, (SEQS,))
    buffers = StepBuffers(SEQS, TOKENS, 1, device)
    executor = LocalExecutor(model, cache, operations, buffers, checks=True, graphs=graphs)
    digests = PageDigests(1, cache.num_layers, PAGE_SIZE)
    rig = replace(rig, engine=Engine(rig.scheduler, builder, executor, IntegrityMode.ENFORCE, digests))
    rig.submit("a", [3, 4, 5], 60)
    rig.submit("b", list(range(40)), 60)
    for _ in range(9):
        rig.step()
    rig.submit("c", [7], 40)
    rig.run()
    assert not rig.violations
    return rig.tokens


@needs_cuda
def test_replayed_decode_steps_answer_as_launched_ones(tmp_path: Path) -> None:
    shape = Shape()
    path = write(tmp_path, shape.config(), shape.tensors())
    device = torch.device("cuda")
    graphs = DecodeGraphs((SEQS,), CudaCapture())
    assert answers(path, device, graphs) == answers(path, device, None)
    assert graphs.replayed > 30
