"""Executor: the ranks that hold the model and the KV cache, and one step on them.

The order within a step is the integrity argument: page records first, then the check of every row's pairs, then the
layers (whose KV writes refuse foreign pages), then sampling, then the conclusion; tokens and verdicts come to the host
together, in one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo_kernels.catalogue import Operations
from octavo_kernels.formats.sampling import SamplingParameters
from octavo_runtime.contract.parallel import require_bundled_world_size
from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.pool import RecordUpdates
from octavo_runtime.models.base import Model


@dataclass(frozen=True)
class Outcome:
    """What a step gave: a token for each sampling row, a verdict word for each row, both in row order."""

    tokens: list[int]
    verdicts: list[int]


class Executor:
    """One rank so far; more are refused. `checks` False leaves the integrity check out (mode off)."""

    def __init__(self, world_size: int, model: Model, cache: KvCache, operations: Operations, *, checks: bool) -> None:
        require_bundled_world_size(world_size)
        self._model = model
        self._cache = cache
        self._operations = operations
        self._checks = checks

    @torch.inference_mode()
    def execute(self, batch: Batch, updates: RecordUpdates, sampling: Sequence[EngineRequest]) -> Outcome:
        """Run one step. `sampling` are the requests of the rows that sample, in row order."""
        records = self._cache.records
        records.apply(updates)
        if self._checks:
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
        logits = self._model.forward(batch, self._cache)
        tokens = self._operations.sample(logits, _parameters(sampling, logits.device))
        if self._checks:
            self._operations.conclude(
                block_table=batch.block_table,
                context_lens=batch.context_lens,
                page_places=records.place,
                page_size=self._cache.page_size,
                step=batch.step,
                verdict=batch.verdict,
            )
        both = torch.cat((tokens, batch.verdict.to(torch.int64))).tolist()
        return Outcome(tokens=both[: len(sampling)], verdicts=both[len(sampling) :])


def _parameters(requests: Sequence[EngineRequest], device: torch.device) -> SamplingParameters:
    """One entry per sampled row; the position of the draw is the index of the token to be drawn."""
    return SamplingParameters(
        temperature=torch.tensor([r.sampling.temperature for r in requests], dtype=torch.float32, device=device),
        top_k=torch.tensor([r.sampling.top_k for r in requests], dtype=torch.int64, device=device),
        top_p=torch.tensor([r.sampling.top_p for r in requests], dtype=torch.float32, device=device),
        seed=torch.tensor([r.sampling.seed for r in requests], dtype=torch.int64, device=device),
        position=torch.tensor([len(r.tokens) for r in requests], dtype=torch.int64, device=device),
    )
