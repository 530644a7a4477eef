"""The seam between engine and models: a Batch and a KvCache in, logits out."""

from __future__ import annotations

from typing import Protocol

import torch

from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.engine.batch import Batch
from octavo_runtime.kv.cache import KvCache


class Model(Protocol):
    """One rank's share of a loaded model."""

    @property
    def facts(self) -> ModelFacts:
        """What the checkpoint is."""
        ...

    def forward(self, batch: Batch, cache: KvCache) -> torch.Tensor:
        """Write the batch's keys and values, attend, and return logits [S, vocab_size] float32 for `sample_tokens`.

        Refused KV writes mark `batch.verdict`. The caller checks the rows before (`integrity.check_rows`) and concludes
        after (`integrity.conclude`); without both no row is clean.
        """
        ...
