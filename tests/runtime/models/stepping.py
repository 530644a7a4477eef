"""Running a model through Batch and KvCache with an allocator of ten lines: no scheduler, no sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch

from octavo_kernels.catalogue import operations_for
from octavo_kernels.device import Device
from octavo_kernels.formats.binding import add, mix
from octavo_kernels.formats.place import place_of
from octavo_kernels.formats.verdict import is_clean
from octavo_kernels.registry import Formats
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling, WeightFormat
from octavo_runtime.engine.batch import Batch
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.load import load_model
from octavo_runtime.models.base import Model

CPU = torch.device("cpu")
PAGE_SIZE = 64
LIVE_TAG = 2


@dataclass
class Sequence:
    """One request: how many of its tokens are cached, its pages, and its row's binding."""

    nonce: int
    cached: int = 0
    pages: list[int] = field(default_factory=list)
    binding: int = 0


@dataclass
class Stepper:
    """A loaded model with its cache. Steps count by themselves; a row that is not clean fails the test."""

    model: Model
    cache: KvCache
    steps: int = 0
    sequences: int = 0
    pages_used: int = 0

    @classmethod
    def load(
        cls,
        path: Path,
        weights: WeightFormat,
        kv: KvFormat,
        num_pages: int = 128,
        scaling: KvScaling = KvScaling.PER_TENSOR,
    ) -> Stepper:
        """Load the checkpoint in `path`."""
        facts = read_facts(path)
        layout = ParallelLayout.of(facts, 1)
        operations = operations_for(Device.cpu(), Formats(weights, kv))
        model = load_model(path, facts, layout, weights, CPU, operations=operations)
        return cls(model, KvCache.allocate(facts, layout, kv, num_pages, PAGE_SIZE, CPU, scaling))

    def fresh(self) -> Stepper:
        """The same model with an empty cache."""
        facts = self.model.facts
        layout = ParallelLayout.of(facts, 1)
        pages = self.cache.num_pages
        return Stepper(self.model, KvCache.allocate(facts, layout, self.cache.format, pages, PAGE_SIZE, CPU))

    def start(self) -> Sequence:
        """A new request without tokens."""
        self.sequences += 1
        return Sequence(nonce=self.sequences)

    def stored(self, sequence: Sequence) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per layer, the request's keys and values as its pages hold them: [tokens, kv_heads, head_dim] float32."""
        return [
            (_rows(layer.k, sequence) * layer.k_scale, _rows(layer.v, sequence) * layer.v_scale)
            for layer in self.cache.layers
        ]

    @torch.inference_mode()
    def step(self, rows: Mapping[int, tuple[Sequence, list[int]]], *, every: bool = False) -> dict[int, torch.Tensor]:
        """Run new tokens of several requests; logits of each row's last token [V], or of `every` one [n, V]."""
        self.steps += 1
        batch = self._batch([*rows.values()], every=every)
        operations = operations_for(Device.cpu(), Formats())
        records = self.cache.records
        operations.check_rows(
            block_table=batch.block_table,
            query_start=batch.query_start,
            context_lens=batch.context_lens,
            nonces=batch.nonces,
            bindings=batch.bindings,
            page_tags=records.tag,
            page_places=records.place,
            page_size=PAGE_SIZE,
            verdict=batch.verdict,
        )
        logits = self.model.forward(batch, self.cache)
        operations.conclude(
            block_table=batch.block_table,
            context_lens=batch.context_lens,
            page_places=records.place,
            page_size=PAGE_SIZE,
            step=batch.step,
            verdict=batch.verdict,
        )
        assert all(is_clean(word, batch.step) for word in batch.verdict.tolist())
        starts = batch.query_start.tolist() if every else list(range(batch.num_rows + 1))
        parts = [logits[start:end] if every else logits[start] for start, end in pairwise(starts)]
        return dict(zip(rows, parts, strict=True))

    def _batch(self, rows: list[tuple[Sequence, list[int]]], *, every: bool) -> Batch:
        starts, positions = [0], []
        for sequence, tokens in rows:
            starts.append(starts[-1] + len(tokens))
            positions.append(torch.arange(sequence.cached, sequence.cached + len(tokens)))
            sequence.cached += len(tokens)
            self._extend(sequence)
        widest = max(len(sequence.pages) for sequence, _ in rows)
        table = torch.zeros((len(rows), widest, 2), dtype=torch.int32)
        for row, (sequence, _) in enumerate(rows):
            table[row, : len(sequence.pages), 0] = torch.tensor(sequence.pages)
            table[row, : len(sequence.pages), 1] = LIVE_TAG
        counts = torch.tensor(starts).diff()
        return Batch(
            step=self.steps,
            token_ids=torch.tensor([token for _, tokens in rows for token in tokens]),
            positions=torch.cat(positions),
            token_rows=torch.arange(len(rows)).repeat_interleave(counts),
            query_start=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor([sequence.cached for sequence, _ in rows], dtype=torch.int32),
            block_table=table,
            nonces=torch.tensor([sequence.nonce for sequence, _ in rows], dtype=torch.int32),
            bindings=torch.tensor([sequence.binding for sequence, _ in rows], dtype=torch.int64),
            sample_tokens=torch.arange(starts[-1]) if every else torch.tensor(starts[1:]) - 1,
            verdict=torch.zeros(len(rows), dtype=torch.int32),
        )

    def _extend(self, sequence: Sequence) -> None:
        records = self.cache.records
        while len(sequence.pages) * PAGE_SIZE < sequence.cached:
            self.pages_used += 1
            page, logical = self.pages_used, len(sequence.pages)
            records.tag[page], records.writer[page] = LIVE_TAG, sequence.nonce
            records.place[page] = place_of(logical, 0)
            sequence.pages.append(page)
            sequence.binding = add(sequence.binding, mix(sequence.nonce, logical, page, LIVE_TAG))


def _rows(pages: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    return torch.cat([pages[page].float() for page in sequence.pages])[: sequence.cached]
