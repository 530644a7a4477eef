"""Decode shapes of two large models on one of eight GPUs, for the roofline: what a GPU holds and multiplies per layer.

From the models' configurations. Eight-way tensor parallelism: query heads and the experts' intermediate features are
divided, the latent KV rows and what makes them (down-projections of queries and keys) are on every GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

GPUS = 8


@dataclass(frozen=True)
class Model:
    """A layer's sizes, as in the configuration."""

    name: str
    layers: int
    hidden: int
    heads: int
    q_rank: int
    """Of the queries' down-projection."""
    latent: int
    rope: int
    nope: int
    value: int
    experts: int
    top_k: int
    intermediate: int
    shared_experts: int
    vocabulary: int
    index_heads: int = 0
    """Of the indexer of sparse attention; 0 where attention is dense."""
    index_top_k: int = 0
    """Tokens that sparse attention reads per query."""

    @property
    def local_heads(self) -> int:
        """Query heads on one GPU."""
        return self.heads // GPUS

    @property
    def local_intermediate(self) -> int:
        """Of one expert on one GPU."""
        return self.intermediate // GPUS


KIMI_K26 = Model(
    name="Kimi K2.6",
    layers=61,
    hidden=7168,
    heads=64,
    q_rank=1536,
    latent=512,
    rope=64,
    nope=128,
    value=128,
    experts=384,
    top_k=8,
    intermediate=2048,
    shared_experts=1,
    vocabulary=163840,
)
GLM_52 = Model(
    name="GLM-5.2",
    layers=78,
    hidden=6144,
    heads=64,
    q_rank=2048,
    latent=512,
    rope=64,
    nope=192,
    value=256,
    experts=256,
    top_k=8,
    intermediate=2048,
    shared_experts=1,
    vocabulary=154880,
    index_heads=32,
    index_top_k=2048,
)
MODELS = (KIMI_K26, GLM_52)
