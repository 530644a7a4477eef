"""load_model: a checkpoint directory becomes one rank's model in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from octavo_kernels.catalogue import Operations, operations_for
from octavo_kernels.device import Device
from octavo_kernels.registry import Formats, NoImplementation
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.parallel import ParallelLayout, require_bundled_world_size
from octavo_runtime.contract.precision import WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.servable import check_servable
from octavo_runtime.loading.allocator import freed_at_once
from octavo_runtime.loading.architecture import read_config
from octavo_runtime.loading.checkpoint import OpenCheckpoint
from octavo_runtime.loading.files import LocalFiles
from octavo_runtime.loading.weights import WeightReader
from octavo_runtime.models.base import Model
from octavo_runtime.models.registry import loader_of

Progress = Callable[[str], None]
"""Takes a sentence for people, at most one a second."""

REPORT_SECONDS = 1.0
"""At least this long between two progress reports."""


def load_model(
    path: Path,
    facts: ModelFacts,
    layout: ParallelLayout,
    weights: WeightFormat,
    device: torch.device,
    progress: Progress | None = None,
    operations: Operations | None = None,
) -> Model:
    """Load the checkpoint in directory `path`, described by `facts`, with routed experts in format `weights`.

    `operations` are the kernels that the model will call; by default what the registry selects for the device. Raises
    Refused with a reason for a model that cannot be served, a damaged checkpoint, and a size that does not fit the
    format.
    """
    check_servable(facts)
    require_bundled_world_size(layout.world_size)
    _, config = read_config(LocalFiles(path))
    chosen = operations or _select(device, weights)
    load = loader_of(facts.architecture)
    report = _Report(progress) if progress is not None else None
    with freed_at_once(), OpenCheckpoint(path, report) as checkpoint:
        if report is not None:
            report.total = checkpoint.bytes_total
        reader = WeightReader(checkpoint, facts, weights, device)
        model, ignored = load(config, facts, layout, reader, chosen)
        checkpoint.finish(ignored)
        if report is not None:
            report.done(checkpoint.bytes_read)
    return model


def _select(device: torch.device, weights: WeightFormat) -> Operations:
    try:
        return operations_for(Device.of(device), Formats(weights=weights))
    except NoImplementation as error:
        raise Refused("WeightsUnsupported", f"--weights {weights.lower()}: {error}") from error


class _Report:
    """Turns bytes read into a sentence now and then."""

    def __init__(self, progress: Progress) -> None:
        self.total = 0
        self._progress = progress
        self._started = self._last = time.monotonic()

    def __call__(self, bytes_read: int) -> None:
        now = time.monotonic()
        if now - self._last >= REPORT_SECONDS:
            self._last = now
            self._progress(f"read {self._figures(bytes_read, now)}")

    def done(self, bytes_read: int) -> None:
        now = time.monotonic()
        self._progress(f"loaded {self._figures(bytes_read, now)} in {now - self._started:.1f} s")

    def _figures(self, bytes_read: int, now: float) -> str:
        rate = bytes_read / max(now - self._started, 1e-3)
        return f"{bytes_read / 1e6:,.1f} of {self.total / 1e6:,.1f} MB, {rate / 1e6:,.0f} MB/s"
