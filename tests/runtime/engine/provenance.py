"""A model whose answer betrays what it read: each token's key spells the token and its position, digit by digit.

It writes through the real KV write and reads through the real block table, so its next token is a function of exactly
the pages that attention would have read. `expected_answer` computes the same from the prompt alone: an engine that
reads, writes or keeps one wrong page gives another answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo_kernels.catalogue import Operations, operations_for
from octavo_kernels.device import Device
from octavo_kernels.reference.block_table import clamp_pages
from octavo_kernels.registry import Formats
from octavo_runtime.contract.facts import AttentionFacts, AttentionKind, CheckpointFormat, ModelFacts, ParameterFacts
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.batch import Batch
from octavo_runtime.kv.cache import KvCache

VOCABULARY = 512
DIGITS = 8
"""Base-16 digits, which FP8 e4m3 holds exactly: three of the token, five of the position."""

FACTS = ModelFacts(
    architecture="Provenance",
    revision="test",
    layers=1,
    hidden_size=DIGITS,
    vocab_size=VOCABULARY,
    max_position_embeddings=4096,
    attention=AttentionFacts(kind=AttentionKind.GQA, heads=1, kv_heads=1, head_dim=DIGITS),
    format=CheckpointFormat.BF16,
    parameters=ParameterFacts(routed_experts=0, embeddings=0, other=0),
    checkpoint_bytes=0,
)
LAYOUT = ParallelLayout.of(FACTS, 1)
CPU = torch.device("cpu")


def next_token(tokens: Sequence[int], *, ends_at: int | None = None) -> int:
    """FNV-1a over the whole context; `ends_at` tokens bring the stop token 0."""
    if ends_at is not None and len(tokens) >= ends_at:
        return 0
    word = 2166136261
    for token in tokens:
        word = ((word ^ token) * 16777619) % 2**32
    return 1 + word % (VOCABULARY - 1)


def expected_answer(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What a request gives when nothing goes wrong; it never contains the token 0."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class ProvenanceModel:
    """Model-free engine's model: no weights, and every mistake shows."""

    facts: ModelFacts = FACTS
    forwards: int = 0
    operations: Operations | None = None
    """By default the real ones."""

    def forward(self, batch: Batch, cache: KvCache) -> torch.Tensor:
        """Logits [S, VOCABULARY], one-hot at the next token of what was read."""
        self.forwards += 1
        layer = cache.layers[0]
        keys = _spell(batch.token_ids, batch.positions)[:, None, :]
        store(self.operations or OPERATIONS, keys, batch, cache)
        logits = torch.zeros(batch.sample_tokens.shape[0], VOCABULARY)
        for sample, token in enumerate(batch.sample_tokens.tolist()):
            row = int(batch.token_rows[token])
            pages = clamp_pages(batch.block_table[row, :, 0], cache.num_pages)
            read = layer.k[pages].flatten(0, 1)[: int(batch.context_lens[row]), 0].float()
            logits[sample, next_token(_read(read))] = 1.0
        return logits


def store(operations: Operations, keys: torch.Tensor, batch: Batch, cache: KvCache) -> None:
    """Write `keys` [T, 1, DIGITS] as keys and values of the only layer."""
    layer, records = cache.layers[0], cache.records
    operations.kv_write(
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


def _spell(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    digits = [(tokens >> (4 * i)) & 15 for i in range(3)] + [(positions >> (4 * i)) & 15 for i in range(5)]
    return torch.stack(digits, dim=1).float()


def _read(keys: torch.Tensor) -> list[int]:
    """Tokens spelled by `keys`; a key at another position than its own counts as another token."""
    digits = keys.long()
    places = torch.tensor([4 * i for i in range(5)])
    tokens = (digits[:, :3] << places[:3]).sum(dim=1)
    positions = (digits[:, 3:] << places).sum(dim=1)
    slipped = positions != torch.arange(keys.shape[0])
    return list(torch.where(slipped, tokens + VOCABULARY, tokens).tolist())


OPERATIONS = operations_for(Device.cpu(), Formats())


def cache_of(num_pages: int, page_size: int, kv: KvFormat = KvFormat.BF16) -> KvCache:
    """An empty cache of the provenance model."""
    return KvCache.allocate(FACTS, LAYOUT, kv, num_pages, page_size, CPU)
