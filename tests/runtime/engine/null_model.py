"""A model that only writes its tokens as keys, with the real KV write, and has its answers ready: for speed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.catalogue import Operations
from octavo_kernels.formats.sampling import SamplingParameters
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.engine.batch import Batch
from octavo_runtime.kv.cache import KvCache
from tests.runtime.engine.provenance import DIGITS, FACTS, VOCABULARY, store

ROWS_LIMIT = 256


@dataclass
class NullModel:
    """Implements `models.base.Model`; nothing reads what it writes but the integrity check and the page digests."""

    operations: Operations
    facts: ModelFacts = FACTS

    def __post_init__(self) -> None:
        self._tokens = torch.arange(1, ROWS_LIMIT)
        self._keys = torch.randn(VOCABULARY, 1, DIGITS, generator=torch.Generator().manual_seed(3))

    def forward(self, batch: Batch, cache: KvCache) -> torch.Tensor:
        """Logits [S, 1] that nobody reads: `sample` goes with this model."""
        keys = self._keys[batch.token_ids]
        store(self.operations, keys, batch, cache)
        return keys[: batch.sample_tokens.shape[0], 0, :1]

    def sample(self, logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
        """Token `i + 1` for row `i` of S: int64 [S]."""
        return self._tokens[: logits.shape[0]]
