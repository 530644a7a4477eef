"""Between the upload of a step and its verdict the host waits for the device once: when the results come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo_kernels.catalogue import Operations, operations_for
from octavo_kernels.device import Device, DeviceKind
from octavo_kernels.registry import Formats
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, WeightFormat
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.buffers import LoadedStep, StepBuffers
from octavo_runtime.engine.executor import DigestJob, LocalExecutor
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.updates import DeviceUpdates, PageCopy
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.load import load_model
from octavo_runtime.models.qwen3_moe import Qwen3Moe
from tests.kernels.triton.no_waiting import WaitedForTheDevice
from tests.runtime.engine.one_sync import CPU, DEVICE, RESULTS, launch_nothing, listed, moved
from tests.runtime.engine.rig import Rig, rig_of
from tests.runtime.qwen3_moe_files import Shape, write

FORMATS = [(WeightFormat.INT4, KvFormat.FP8), (WeightFormat.BF16, KvFormat.BF16)]


def triton(weights: WeightFormat, kv: KvFormat) -> Operations:
    return operations_for(Device(DeviceKind.CUDA, (9, 0)), Formats(weights, kv))


def model_of(path: Path, operations: Operations, weights: WeightFormat) -> Qwen3Moe:
    """Loaded on the CPU, where weights may be looked at, and moved."""
    facts = read_facts(path)
    model = load_model(path, facts, ParallelLayout.of(facts, 1), weights, CPU, operations=operations)
    assert isinstance(model, Qwen3Moe)
    return moved(model)


class Waiting(LocalExecutor):
    """Looks at something before the results are there."""

    def load(self, step: PreparedStep, digests: DigestJob) -> LoadedStep:
        loaded = super().load(step, digests)
        assert loaded.batch.verdict.tolist()
        return loaded


class Step:
    """One executor on the device without answers, and steps of a real scheduler for it."""

    def __init__(self, path: Path, weights: WeightFormat, kv: KvFormat, executor: type[LocalExecutor]) -> None:
        self.operations = triton(weights, kv)
        self.model = model_of(path, self.operations, weights)
        facts = self.model.facts
        self.cache = KvCache.allocate(facts, ParallelLayout.of(facts, 1), kv, 64, 16, DEVICE)
        buffers = StepBuffers(4, 64, 2, DEVICE)
        self.executor = executor(self.model, self.cache, self.operations, buffers, checks=True)
        self.builder = BatchBuilder(4)
        self.number = 0
        self.rig: Rig = rig_of(pages=63, page_size=16, tokens_per_step=64)

    def prepare(self) -> tuple[PreparedStep, DeviceUpdates, DigestJob]:
        """The next step, with every kind of update; its requests go on as if it had been clean."""
        scheduler = self.rig.scheduler
        rows = scheduler.schedule().rows
        self.number += 1
        prepared = self.builder.build(self.number, rows, scheduler.slots)
        updates = replace(self.rig.kv.take_updates(), copies=(PageCopy(1, 60, 7), PageCopy(2, 61, 3)))
        for row in rows:
            row.request.computed = row.end
            if row.samples:
                row.request.tokens.append(1)
        return prepared, updates, DigestJob(np.array([1, 2]), (0, 1))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    shape = Shape()
    return write(tmp_path, shape.config(), shape.tensors())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return launch_nothing(monkeypatch)


@pytest.mark.parametrize(("weights", "kv"), FORMATS)
def test_a_step_waits_once_and_nothing_follows(
    checkpoint: Path, launched: list[str], weights: WeightFormat, kv: KvFormat
) -> None:
    step = Step(checkpoint, weights, kv, LocalExecutor)
    step.rig.submit("short", [5], 30)
    step.rig.submit("long", list(range(40)), 30)
    for arrives in ("", "late", ""):  # a prompt; a decode beside a prompt, a wider table; decodes alone
        if arrives:
            step.rig.submit(arrives, list(range(50)), 30)
        prepared, updates, digests = step.prepare()
        with listed() as waits:
            outcome = step.executor.execute(prepared, updates, digests)
        assert waits.seen == [RESULTS]
        assert not waits.after
        assert len(outcome.verdicts) == prepared.host.num_rows
    assert {"check_row", "store_rows", "conclude_row", "digest_slot"} <= set(launched)


def test_a_launcher_that_asks_is_found(checkpoint: Path, launched: list[str]) -> None:
    step = Step(checkpoint, *FORMATS[0], LocalExecutor)
    step.rig.submit("a", [5], 3)

    def asks(x: torch.Tensor, *arguments: object) -> torch.Tensor:
        return x * x.sum().item()

    object.__setattr__(step.model.operations, "rms_norm", asks)
    with listed(), pytest.raises(WaitedForTheDevice, match="_local_scalar_dense"):
        step.executor.execute(*step.prepare())


def test_an_executor_that_looks_before_the_end_is_found(checkpoint: Path, launched: list[str]) -> None:
    step = Step(checkpoint, *FORMATS[0], Waiting)
    step.rig.submit("a", [5], 3)
    with listed(), pytest.raises(WaitedForTheDevice, match="to the host"):
        step.executor.execute(*step.prepare())


def test_an_upload_that_waits_is_found() -> None:
    words = torch.ones(3)
    with listed() as waits:
        words.to(DEVICE)
        torch.empty(3, device=DEVICE).copy_(words)
        torch.tensor([1], device=DEVICE)
        words.to(DEVICE, non_blocking=True)
    assert len(waits.seen) == 3
