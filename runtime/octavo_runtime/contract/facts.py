"""ModelFacts: what a checkpoint's config and tensor headers say, small enough for a termination message (4 KiB)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Parameters = Annotated[int, Field(ge=0, le=2**53)]


class ContractModel(BaseModel):
    """Frozen, closed, camelCase in JSON: the same document goes through Kubernetes and through a pipe."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, protected_namespaces=()
    )


class AttentionKind(StrEnum):
    """How keys and values are stored. MLA stores one latent row per token, the same on every tensor-parallel rank."""

    GQA = "GQA"
    MLA = "MLA"


class CheckpointFormat(StrEnum):
    """Number format of the routed experts (or, without experts, of the linear layers) as stored in the checkpoint."""

    BF16 = "BF16"
    FP16 = "FP16"
    FP32 = "FP32"
    FP8 = "FP8"
    INT4 = "INT4"
    NVFP4 = "NVFP4"

    @property
    def quantised(self) -> bool:
        """Whether the checkpoint brings its own low-precision format, which Octavo then keeps."""
        return self in {CheckpointFormat.FP8, CheckpointFormat.INT4, CheckpointFormat.NVFP4}


class AttentionFacts(ContractModel):
    """Shapes of the attention layers."""

    kind: AttentionKind
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    kv_lora_rank: Positive | None = None
    """Width of the MLA latent, e.g. 512; absent for GQA."""
    qk_rope_head_dim: Positive | None = None
    """Width of the rotary part of an MLA row, e.g. 64; absent for GQA."""

    @model_validator(mode="after")
    def _mla_rows_are_described(self) -> Self:
        if self.kind is AttentionKind.MLA and (self.kv_lora_rank is None or self.qk_rope_head_dim is None):
            raise ValueError("attention.kind MLA needs kvLoraRank and qkRopeHeadDim")
        if self.kind is AttentionKind.GQA and self.heads % self.kv_heads:
            raise ValueError(f"attention.heads {self.heads} is no multiple of attention.kvHeads {self.kv_heads}")
        return self


class ExpertFacts(ContractModel):
    """Shapes of the mixture-of-experts layers."""

    count: Positive
    per_token: Positive
    intermediate_size: Positive
    layers: Positive
    """How many decoder layers have routed experts."""

    @model_validator(mode="after")
    def _top_k_fits(self) -> Self:
        if self.per_token > self.count:
            raise ValueError(f"experts.perToken {self.per_token} exceeds experts.count {self.count}")
        return self


class ParameterFacts(ContractModel):
    """Parameter counts by what is done with them. Their sum is the whole model."""

    routed_experts: Parameters
    embeddings: Parameters
    """Token embedding and output head; tied weights count once."""
    other: Parameters

    @property
    def total(self) -> int:
        """All parameters of the model."""
        return self.routed_experts + self.embeddings + self.other


class ModelFacts(ContractModel):
    """Everything that planning needs to know of a checkpoint; `octavo inspect --json` prints it."""

    architecture: Annotated[str, Field(min_length=1, max_length=128)]
    """First entry of `architectures` in config.json, e.g. Qwen3MoeForCausalLM."""
    revision: Annotated[str, Field(min_length=1, max_length=128)]
    """What the source resolved to: a commit, an image digest, or `sha256:` of the config and tensor headers."""
    layers: Positive
    hidden_size: Positive
    vocab_size: Positive
    max_position_embeddings: Positive
    attention: AttentionFacts
    experts: ExpertFacts | None = None
    format: CheckpointFormat
    group_size: Positive | None = None
    """Quantisation group along K; absent for unquantised checkpoints."""
    parameters: ParameterFacts
    checkpoint_bytes: Parameters
    """Sum of all tensor bytes in the checkpoint."""
