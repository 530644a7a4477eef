"""Executor: the ranks that hold the model and the KV cache, and one step on them.

The order within a step is the integrity argument: page records first, then the check of every row's pairs, then the
layers (whose KV writes refuse foreign pages), then sampling, then the conclusion; tokens, verdicts and digests come to
the host together, in one copy, and this is the only time that a step waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from octavo_kernels.catalogue import Operations
from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.buffers import LoadedStep, StepBuffers
from octavo_runtime.engine.graphs import DecodeGraphs
from octavo_runtime.engine.host_step import Int64, PreparedStep
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.updates import DeviceUpdates
from octavo_runtime.models.base import Model


@dataclass(frozen=True)
class DigestJob:
    """Full pages whose digests are wanted, each in one layer: `pages` [D] int64."""

    pages: Int64
    layers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.layers)


NO_DIGESTS = DigestJob(np.zeros(0, np.int64), ())


@dataclass(frozen=True)
class Outcome:
    """What a step gave; rows are those of the batch."""

    tokens: list[int]
    """[R], `buffers.NO_TOKEN` where the row does not sample."""
    verdicts: list[int]
    """[R]."""
    moved: Sequence[int] = ()
    """For each page copy of the step, whether source and target differ afterwards (0 or 1)."""
    digests: Sequence[int] = ()
    """For each page of the job; with several ranks the sum of theirs modulo 2**32, as an int32."""
    disagreements: Sequence[int] = ()
    """Rows whose token or verdict is not the same on every rank."""


class Executor(Protocol):
    """All ranks, as the engine sees them."""

    @property
    def checks(self) -> int:
        """How often the check kernels were launched; the watchdog looks at it."""
        ...

    def execute(self, step: PreparedStep, updates: DeviceUpdates, digests: DigestJob = NO_DIGESTS) -> Outcome:
        """Apply `updates`, run the step, take the digests."""
        ...

    def self_check(self, step: int) -> int:
        """Check a row without pages under this step number; the verdict word, which has to be `step`."""
        ...


class LocalExecutor:
    """One rank, in this process. `checks` False leaves the integrity check out (mode off)."""

    def __init__(
        self,
        model: Model,
        cache: KvCache,
        operations: Operations,
        buffers: StepBuffers,
        *,
        checks: bool,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._operations = operations
        self._buffers = buffers
        self._checked = checks
        self._graphs = graphs
        self._checks = 0

    @property
    def checks(self) -> int:
        """See `Executor`."""
        return self._checks

    @torch.inference_mode()
    def execute(self, step: PreparedStep, updates: DeviceUpdates, digests: DigestJob = NO_DIGESTS) -> Outcome:
        """See `Executor`."""
        cache = self._cache
        loaded = self.load(step, digests)
        moved = cache.apply(updates, self._operations.digest_pages if self._checked else _not_digested)
        tokens = self._compute(loaded) if self._graphs is None else self._graphs.run(loaded, cache, self._compute)
        if self._checked:
            self._conclude(loaded.batch)
        values = [self._digest(loaded, place, layer) for place, layer in enumerate(digests.layers)]
        results = self._buffers.collect(loaded, tokens, moved, values)
        return Outcome(results.tokens, results.verdicts, results.moved, results.digests)

    def load(self, step: PreparedStep, digests: DigestJob) -> LoadedStep:
        """Bring the step to the device."""
        return self._buffers.load(step.host, digests.pages, self._cache.page_size)

    @torch.inference_mode()
    def self_check(self, step: int) -> int:
        """See `Executor`."""
        batch = _without_pages(step, self._cache.records.tag.device)
        self._check(batch)
        self._conclude(batch)
        return int(batch.verdict.item())

    def _compute(self, loaded: LoadedStep) -> torch.Tensor:
        """What a graph can record: it depends on shapes and on what the device holds, not on the step's number."""
        if self._checked:
            self._check(loaded.batch)
        return self._operations.sample(self._model.forward(loaded.batch, self._cache), loaded.sampling)

    def _check(self, batch: Batch) -> None:
        records = self._cache.records
        self._operations.check_rows(
            block_table=batch.block_table,
            query_start=batch.query_start,
            context_lens=batch.context_lens,
            nonces=batch.nonces,
            bindings=batch.bindings,
            page_tags=records.tag,
            page_places=records.place,
            page_size=self._cache.page_size,
            verdict=batch.verdict,
        )

    def _conclude(self, batch: Batch) -> None:
        self._operations.conclude(
            block_table=batch.block_table,
            context_lens=batch.context_lens,
            page_places=self._cache.records.place,
            page_size=self._cache.page_size,
            step=batch.step,
            verdict=batch.verdict,
        )
        self._checks += 1

    def _digest(self, loaded: LoadedStep, place: int, layer: int) -> torch.Tensor:
        k_pages, v_pages = self._cache.payload(layer)
        pages, fill = loaded.digest_pages[place : place + 1], loaded.digest_fill[place : place + 1]
        return self._operations.digest_pages(k_pages=k_pages, v_pages=v_pages, pages=pages, fill=fill)


def _not_digested(
    *, k_pages: torch.Tensor, v_pages: torch.Tensor | None, pages: torch.Tensor, fill: torch.Tensor
) -> torch.Tensor:
    """Stands for the digests of copied pages in mode off: all the same."""
    return torch.zeros(pages.shape, dtype=torch.int32, device=pages.device)


def _without_pages(step: int, device: torch.device) -> Batch:
    """A row of nobody, which has no tokens and reads nothing: clean if the check speaks."""

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    nothing = zeros(0, dtype=torch.int64)
    return Batch(
        step=step,
        token_ids=nothing,
        positions=nothing,
        token_rows=nothing,
        query_start=zeros(2),
        context_lens=zeros(1),
        block_table=zeros(1, 1, 2),
        nonces=zeros(1),
        bindings=zeros(1, dtype=torch.int64),
        sample_tokens=nothing,
        verdict=zeros(1),
    )
