"""ModelFacts of published models, from their public config fields and parameter counts."""

from __future__ import annotations

from octavo_runtime.contract.facts import (
    AttentionFacts,
    AttentionKind,
    CheckpointFormat,
    ExpertFacts,
    ModelFacts,
    ParameterFacts,
)


def _mla(heads: int, head_dim: int) -> AttentionFacts:
    return AttentionFacts(
        kind=AttentionKind.MLA,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
    )


def gqa(heads: int, kv_heads: int, head_dim: int = 128) -> AttentionFacts:
    """Grouped-query attention."""
    return AttentionFacts(kind=AttentionKind.GQA, heads=heads, kv_heads=kv_heads, head_dim=head_dim)


KIMI_K26 = ModelFacts(
    architecture="KimiK25ForConditionalGeneration",
    revision="0" * 40,
    layers=61,
    hidden_size=7168,
    vocab_size=163840,
    max_position_embeddings=262144,
    attention=_mla(64, 192),
    experts=ExpertFacts(count=384, per_token=8, intermediate_size=2048, layers=60),
    format=CheckpointFormat.INT4,
    group_size=32,
    parameters=ParameterFacts(
        routed_experts=60 * 384 * 3 * 2048 * 7168, embeddings=2 * 163840 * 7168, other=9_373_398_528
    ),
    checkpoint_bytes=594_206_457_856,
)

GLM_52 = ModelFacts(
    architecture="GlmMoeDsaForCausalLM",
    revision="0" * 40,
    layers=78,
    hidden_size=6144,
    vocab_size=154880,
    max_position_embeddings=1048576,
    attention=_mla(64, 256),
    experts=ExpertFacts(count=256, per_token=8, intermediate_size=2048, layers=75),
    format=CheckpointFormat.BF16,
    parameters=ParameterFacts(
        routed_experts=76 * 256 * 3 * 2048 * 6144, embeddings=2 * 154880 * 6144, other=16_987_358_208
    ),
    checkpoint_bytes=1_506_659_901_440,
)

GLM_52_FP8 = GLM_52.model_copy(update={"format": CheckpointFormat.FP8, "group_size": 128})

QWEN3_30B = ModelFacts(
    architecture="Qwen3MoeForCausalLM",
    revision="0" * 40,
    layers=48,
    hidden_size=2048,
    vocab_size=151936,
    max_position_embeddings=40960,
    attention=gqa(32, 4),
    experts=ExpertFacts(count=128, per_token=8, intermediate_size=768, layers=48),
    format=CheckpointFormat.BF16,
    parameters=ParameterFacts(
        routed_experts=48 * 128 * 3 * 768 * 2048, embeddings=2 * 151936 * 2048, other=918_760_448
    ),
    checkpoint_bytes=61_064_245_248,
)

MIXTRAL = ModelFacts(
    architecture="MixtralForCausalLM",
    revision="0" * 40,
    layers=32,
    hidden_size=4096,
    vocab_size=32000,
    max_position_embeddings=32768,
    attention=gqa(32, 8),
    experts=ExpertFacts(count=8, per_token=2, intermediate_size=14336, layers=32),
    format=CheckpointFormat.BF16,
    parameters=ParameterFacts(
        routed_experts=32 * 8 * 3 * 14336 * 4096, embeddings=2 * 32000 * 4096, other=1_343_492_096
    ),
    checkpoint_bytes=93_405_585_408,
)

PUBLISHED = (KIMI_K26, GLM_52, GLM_52_FP8, QWEN3_30B, MIXTRAL)
