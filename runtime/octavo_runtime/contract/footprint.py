"""Memory arithmetic, to the byte: the operator plans with it and the runtime sizes its KV pool with it.

Checked against published deployments (facts kept as tests): Kimi K2.6 keeps 70,272 B of BF16 KV per token
(61 layers x 576 x 2); GLM-5.2 weighs 419.9 GiB with INT4 group-32 routed experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo_runtime.contract.facts import AttentionKind, ModelFacts
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling, WeightFormat

DEFAULT_PAGE_SIZE = 64
"""Tokens per KV page. 16 wastes less at the end of short requests, 128 has shorter block tables."""

INT4_GROUP_SIZE = 32
"""Weights of one INT4 scale along K when Octavo converts a checkpoint; published checkpoints use 32, 64 and 128."""

FP8_BLOCK = 128
"""Edge of the square block that shares one FP32 scale in FP8 block weights (DeepSeek layout)."""

NVFP4_GROUP_SIZE = 16
"""Weights of one e4m3 scale in NVFP4."""

PAGE_METADATA_BYTES = 12
"""Integrity record per page: u32 tag, u32 place (logical index and fill mark), u32 writer nonce."""

KV_SCALE_BYTES = 4
"""FP32 scale of one token's key or value of one head, or of one MLA row. Scales per tensor do not grow with pages."""

BITS_PER_BYTE = 8


def kv_row_elements(facts: ModelFacts, layout: ParallelLayout) -> int:
    """Stored elements per token and layer on one rank: K and V of the rank's KV heads, or one MLA latent row."""
    attention = facts.attention
    if attention.kind is AttentionKind.MLA:
        assert attention.kv_lora_rank is not None
        assert attention.qk_rope_head_dim is not None
        return attention.kv_lora_rank + attention.qk_rope_head_dim
    return 2 * layout.kv_heads_per_rank * attention.head_dim


def kv_scales_per_token(facts: ModelFacts, kv: KvFormat, layout: ParallelLayout, scaling: KvScaling) -> int:
    """Scales stored per token and layer on one rank: none for BF16 and for scales per tensor."""
    if kv is not KvFormat.FP8 or scaling is KvScaling.PER_TENSOR:
        return 0
    return 1 if facts.attention.kind is AttentionKind.MLA else 2 * layout.kv_heads_per_rank


def kv_bytes_per_token(
    facts: ModelFacts, kv: KvFormat, layout: ParallelLayout, scaling: KvScaling = KvScaling.PER_TENSOR
) -> int:
    """KV cache bytes per token on one rank, all layers, scales per token included; page metadata is counted apart."""
    row = kv_row_elements(facts, layout) * kv.bytes_per_element
    return facts.layers * (row + KV_SCALE_BYTES * kv_scales_per_token(facts, kv, layout, scaling))


def page_bytes(
    facts: ModelFacts,
    kv: KvFormat,
    layout: ParallelLayout,
    page_size: int = DEFAULT_PAGE_SIZE,
    scaling: KvScaling = KvScaling.PER_TENSOR,
) -> int:
    """Bytes of one page of `page_size` tokens on one rank, integrity record included."""
    return page_size * kv_bytes_per_token(facts, kv, layout, scaling) + PAGE_METADATA_BYTES


def pages_in(
    budget_bytes: int,
    facts: ModelFacts,
    kv: KvFormat,
    layout: ParallelLayout,
    page_size: int = DEFAULT_PAGE_SIZE,
    scaling: KvScaling = KvScaling.PER_TENSOR,
) -> int:
    """Whole pages that fit `budget_bytes` on one rank, the reserved NULL page included."""
    return max(0, budget_bytes) // page_bytes(facts, kv, layout, page_size, scaling)


def tokens_in(
    budget_bytes: int,
    facts: ModelFacts,
    kv: KvFormat,
    layout: ParallelLayout,
    page_size: int = DEFAULT_PAGE_SIZE,
    scaling: KvScaling = KvScaling.PER_TENSOR,
) -> int:
    """Tokens that requests can hold in `budget_bytes` on one rank: whole pages, less the NULL page."""
    return max(0, pages_in(budget_bytes, facts, kv, layout, page_size, scaling) - 1) * page_size


def bytes_for_tokens(
    tokens: int,
    facts: ModelFacts,
    kv: KvFormat,
    layout: ParallelLayout,
    page_size: int = DEFAULT_PAGE_SIZE,
    scaling: KvScaling = KvScaling.PER_TENSOR,
) -> int:
    """The smallest budget for which `tokens_in` is at least `tokens`."""
    return (-(-tokens // page_size) + 1) * page_bytes(facts, kv, layout, page_size, scaling)


def expert_bits(weights: WeightFormat, group_size: int | None = None) -> float:
    """Bits per routed-expert parameter, scales included."""
    match weights:
        case WeightFormat.BF16:
            return 16.0
        case WeightFormat.FP8:
            return 8.0 + 32.0 / (FP8_BLOCK * FP8_BLOCK)
        case WeightFormat.INT4:
            return 4.0 + 16.0 / (group_size or INT4_GROUP_SIZE)
        case WeightFormat.NVFP4:
            return 4.0 + 8.0 / NVFP4_GROUP_SIZE


@dataclass(frozen=True)
class WeightBytes:
    """Weight bytes on one rank by group."""

    routed_experts: int
    embeddings: int
    other: int

    @property
    def total(self) -> int:
        """All weight bytes on one rank."""
        return self.routed_experts + self.embeddings + self.other


def weight_bytes(facts: ModelFacts, weights: WeightFormat, layout: ParallelLayout) -> WeightBytes:
    """Bytes of all weights on one of `layout.world_size` equal ranks, rounded up.

    Converting a checkpoint touches routed experts only; everything else is BF16. An FP8 checkpoint keeps its other
    linears in FP8 as well; embeddings and output head are BF16 everywhere.
    """
    world = layout.world_size
    keeps_its_format = facts.format.value == weights.value
    routed_bits = expert_bits(weights, facts.group_size if keeps_its_format else None)
    other_is_fp8 = keeps_its_format and weights is WeightFormat.FP8
    other_bits = expert_bits(WeightFormat.FP8 if other_is_fp8 else WeightFormat.BF16)
    return WeightBytes(
        routed_experts=_bytes_per_rank(facts.parameters.routed_experts, routed_bits, world),
        embeddings=_bytes_per_rank(facts.parameters.embeddings, expert_bits(WeightFormat.BF16), world),
        other=_bytes_per_rank(facts.parameters.other, other_bits, world),
    )


def _bytes_per_rank(parameters: int, bits: float, world_size: int) -> int:
    return -(-math.ceil(parameters * bits) // (BITS_PER_BYTE * world_size))
