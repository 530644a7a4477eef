"""A model that only writes its tokens as keys, with the real KV write, and has its answers ready: for speed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.catalogue import Operations
from octavo_kernels.formats.sampling import SamplingParameters
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.engine.batch import Batch
from octavo_runtime.kv.cache import KvCache
from tests.runtime.engine.provenance import DIGITS, FACTS, VOCABULARY

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
        layer, records = cache.layers[0], cache.records
        keys = self._keys[batch.token_ids]
        self.operations.kv_write(
            keys,
            keys,
            k_pages=layer.k,
            v_pages=layer.v,
            k_scale=layer.k_scale,
            v_scale=layer.v_scale,
            block_table=batch.block_table,
            token_rows=batch.token_rows,
            positions=batch.positions,
            nonces=batch.nonces,
            page_tags=records.tag,
            page_writers=records.writer,
            page_places=records.place,
            verdict=batch.verdict,
            last_layer=True,
        )
        return keys[: batch.sample_tokens.shape[0], 0, :1]

    def sample(self, logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
        """Token `i + 1` for row `i` of S: int64 [S]."""
        return self._tokens[: logits.shape[0]]
