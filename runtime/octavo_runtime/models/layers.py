"""Parts that decoder models share: attention through the paged cache, and routed experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.catalogue import Operations
from octavo_kernels.operations import PreparedWeights
from octavo_runtime.engine.batch import Batch
from octavo_runtime.kv.cache import KvCache


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of one step's positions, the same for every layer: [T, head_dim / 2] float32 each."""

    cosine: torch.Tensor
    sine: torch.Tensor


@dataclass(frozen=True)
class HeadNorm:
    """RMSNorm over each query and key head (Qwen3): weights [head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    epsilon: float


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention of one layer; BF16 weights of one rank's heads."""

    query: torch.Tensor
    """[heads * head_dim, hidden]."""
    key: torch.Tensor
    """[kv_heads * head_dim, hidden]."""
    value: torch.Tensor
    output: torch.Tensor
    """[hidden, heads * head_dim]."""
    head_norm: HeadNorm
    head_dim: int
    layer: int
    """Index of the layer, which is also that of its pages in the cache."""

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        norms = (self.head_norm.query, self.head_norm.key)
        return sum(t.nbytes for t in (self.query, self.key, self.value, self.output, *norms))

    def apply(
        self, x: torch.Tensor, batch: Batch, cache: KvCache, rotation: Rotation, operations: Operations
    ) -> torch.Tensor:
        """Store the new keys and values, attend and project: x [T, hidden] float32, normalised; same shape back."""
        linear, norm = operations.linear, self.head_norm
        query = linear(x, self.query).view(x.shape[0], -1, self.head_dim)
        key = linear(x, self.key).view(x.shape[0], -1, self.head_dim)
        value = linear(x, self.value).view(x.shape[0], -1, self.head_dim)
        query = operations.rms_norm(query, norm.query, norm.epsilon)
        key = operations.rms_norm(key, norm.key, norm.epsilon)
        query = operations.rotate(query, rotation.cosine, rotation.sine)
        key = operations.rotate(key, rotation.cosine, rotation.sine)
        pages, records = cache.layers[self.layer], cache.records
        operations.kv_write(
            key,
            value,
            k_pages=pages.k,
            v_pages=pages.v,
            k_scale=pages.k_scale,
            v_scale=pages.v_scale,
            block_table=batch.block_table,
            token_rows=batch.token_rows,
            positions=batch.positions,
            nonces=batch.nonces,
            page_tags=records.tag,
            page_writers=records.writer,
            page_places=records.place,
            verdict=batch.verdict,
            last_layer=self.layer == len(cache.layers) - 1,
        )
        attended = operations.paged_attention(
            query,
            k_pages=pages.k,
            v_pages=pages.v,
            k_scale=pages.k_scale,
            v_scale=pages.v_scale,
            block_table=batch.block_table,
            query_start=batch.query_start,
            context_lens=batch.context_lens,
            positions=batch.positions,
            softmax_scale=self.head_dim**-0.5,
        )
        return linear(attended.flatten(1), self.output)


@dataclass(frozen=True)
class RoutedExperts:
    """A mixture-of-experts layer with softmax routing."""

    router: torch.Tensor
    """[E, hidden] BF16."""
    experts: PreparedWeights
    """What the expert kernel's `prepare` made of the canonical weights."""
    top_k: int
    renormalise: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return self.router.nbytes + self.experts.nbytes

    def apply(self, x: torch.Tensor, operations: Operations) -> torch.Tensor:
        """Route and compute: x [T, hidden] float32, normalised; same shape back."""
        logits = operations.linear(x, self.router)
        ids, weights = operations.router(logits, self.top_k, renormalise=self.renormalise)
        return operations.experts.apply(x, self.experts, ids, weights)
