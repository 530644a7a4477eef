"""Qwen3-MoE (Qwen3MoeForCausalLM): grouped-query attention with normalised heads, routed experts in every layer.

Architecture: Qwen3 technical report, arXiv 2505.09388. Activations are float32; see `octavo_kernels.reference` for
where weights are promoted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.catalogue import Operations
from octavo_kernels.reference.rotary import inverse_frequencies
from octavo_runtime.contract.facts import ExpertFacts, ModelFacts
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.refused import Refused
from octavo_runtime.engine.batch import Batch
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.loading.architecture import Config, invalid
from octavo_runtime.loading.files import CONFIG
from octavo_runtime.loading.weights import WeightReader
from octavo_runtime.models.layers import Attention, HeadNorm, Rotation, RoutedExperts

DEFAULT_THETA = 1_000_000.0
"""Rotary base of published Qwen3-MoE checkpoints; used only where config.json is silent."""

DEFAULT_EPSILON = 1e-6


@dataclass(frozen=True)
class Settings:
    """What the forward pass needs of config.json beyond the facts."""

    epsilon: float
    theta: float
    renormalise: bool
    tied_embeddings: bool

    @classmethod
    def of(cls, config: Config) -> Settings:
        """Read and check; raises Refused `ConfigUnsupported` naming a field that would change the computation."""
        _refuse_unless(config, "hidden_act", "silu", default="silu")
        _refuse_unless(config, "attention_bias", False, default=False)
        _refuse_unless(config, "use_sliding_window", False, default=False)
        _refuse_unless(config, "decoder_sparse_step", 1, default=1)
        _refuse_unless(config, "mlp_only_layers", [], default=[])
        return cls(
            epsilon=_number(config, "rms_norm_eps", DEFAULT_EPSILON),
            theta=_rotary_base(config),
            renormalise=config.flag("norm_topk_prob", default=False),
            tied_embeddings=config.flag("tie_word_embeddings", default=False),
        )


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    attention_norm: torch.Tensor
    attention: Attention
    experts_norm: torch.Tensor
    experts: RoutedExperts

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return self.attention_norm.nbytes + self.attention.nbytes + self.experts_norm.nbytes + self.experts.nbytes


@dataclass(frozen=True)
class Qwen3Moe:
    """One rank's share of the model; implements `models.base.Model`."""

    facts: ModelFacts
    settings: Settings
    embedding: torch.Tensor
    """[vocab, hidden] BF16."""
    layers: tuple[Layer, ...]
    final_norm: torch.Tensor
    output_head: torch.Tensor
    """[vocab, hidden] BF16; the embedding itself where they are tied."""
    frequencies: torch.Tensor
    """[head_dim / 2] float32."""
    operations: Operations

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in memory; a tied output head counts once."""
        tensors = {id(tensor): tensor for tensor in (self.embedding, self.output_head, self.final_norm)}
        return sum(tensor.nbytes for tensor in tensors.values()) + sum(layer.nbytes for layer in self.layers)

    def forward(self, batch: Batch, cache: KvCache) -> torch.Tensor:
        """See `models.base.Model.forward`."""
        ops, epsilon = self.operations, self.settings.epsilon
        rotation = Rotation(*ops.rotary_angles(batch.positions, self.frequencies))
        x = self.embedding[batch.token_ids].float()
        for layer in self.layers:
            normed = ops.rms_norm(x, layer.attention_norm, epsilon)
            x = x + layer.attention.apply(normed, batch, cache, rotation, ops)
            normed = ops.rms_norm(x, layer.experts_norm, epsilon)
            x = x + layer.experts.apply(normed, ops)
        wanted = ops.rms_norm(x[batch.sample_tokens], self.final_norm, epsilon)
        return ops.linear(wanted, self.output_head)


def load(
    config: Config, facts: ModelFacts, layout: ParallelLayout, reader: WeightReader, operations: Operations
) -> tuple[Qwen3Moe, tuple[str, ...]]:
    """Read every tensor, layer by layer; returns the model and the names of tensors it ignores."""
    settings = Settings.of(config)
    assert facts.experts is not None
    embedding = reader.tensor("model.embed_tokens.weight", facts.vocab_size, facts.hidden_size)
    layers = tuple(
        _layer(index, facts, facts.experts, layout, settings, reader, operations) for index in range(facts.layers)
    )
    head = embedding
    if not settings.tied_embeddings:
        head = reader.tensor("lm_head.weight", facts.vocab_size, facts.hidden_size)
    model = Qwen3Moe(
        facts=facts,
        settings=settings,
        embedding=embedding,
        layers=layers,
        final_norm=reader.tensor("model.norm.weight", facts.hidden_size),
        output_head=head,
        frequencies=inverse_frequencies(facts.attention.head_dim, settings.theta, embedding.device),
        operations=operations,
    )
    tied_copy = (r"lm_head\.weight",) if settings.tied_embeddings else ()
    return model, (*tied_copy, r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def _layer(
    index: int,
    facts: ModelFacts,
    experts: ExpertFacts,
    layout: ParallelLayout,
    settings: Settings,
    reader: WeightReader,
    operations: Operations,
) -> Layer:
    prefix = f"model.layers.{index}"
    hidden = facts.hidden_size
    canonical = reader.experts(
        lambda expert, part: f"{prefix}.mlp.experts.{expert}.{part}_proj.weight",
        count=layout.experts_per_rank,
        hidden=hidden,
        intermediate=experts.intermediate_size,
    )
    return Layer(
        attention_norm=reader.tensor(f"{prefix}.input_layernorm.weight", hidden),
        attention=_attention(index, f"{prefix}.self_attn", facts, layout, settings, reader),
        experts_norm=reader.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
        experts=RoutedExperts(
            router=reader.tensor(f"{prefix}.mlp.gate.weight", experts.count, hidden),
            experts=operations.experts.prepare(canonical),
            top_k=experts.per_token,
            renormalise=settings.renormalise,
        ),
    )


def _attention(
    index: int, prefix: str, facts: ModelFacts, layout: ParallelLayout, settings: Settings, reader: WeightReader
) -> Attention:
    head_dim, hidden = facts.attention.head_dim, facts.hidden_size
    query_rows, kv_rows = layout.heads_per_rank * head_dim, layout.kv_heads_per_rank * head_dim
    return Attention(
        query=reader.tensor(f"{prefix}.q_proj.weight", query_rows, hidden),
        key=reader.tensor(f"{prefix}.k_proj.weight", kv_rows, hidden),
        value=reader.tensor(f"{prefix}.v_proj.weight", kv_rows, hidden),
        output=reader.tensor(f"{prefix}.o_proj.weight", hidden, query_rows),
        head_norm=HeadNorm(
            query=reader.tensor(f"{prefix}.q_norm.weight", head_dim),
            key=reader.tensor(f"{prefix}.k_norm.weight", head_dim),
            epsilon=settings.epsilon,
        ),
        head_dim=head_dim,
        layer=index,
    )


def _refuse_unless(config: Config, name: str, supported: object, *, default: object) -> None:
    value = config.values.get(name)
    value = default if value is None else value
    if value != supported or type(value) is not type(supported):
        raise Refused(
            "ConfigUnsupported",
            f"{CONFIG}: {name} is {value!r}; Qwen3MoeForCausalLM is implemented for {supported!r} only",
        )


def _number(config: Config, name: str, default: float) -> float:
    value = config.values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise invalid(f"{config.path}: {name} must be a positive number, got {value!r}")
    return float(value)


def _rotary_base(config: Config) -> float:
    """rope_theta, at top level (older files) or in rope_parameters; any scaling of positions is refused."""
    for section in ("rope_parameters", "rope_scaling"):
        if not config.has(section):
            continue
        parameters = config.section(section)
        kind = parameters.values.get("rope_type", parameters.values.get("type", "default"))
        if kind != "default":
            raise Refused(
                "ConfigUnsupported",
                f"{CONFIG}: {section}: rope_type is {kind!r}; Qwen3MoeForCausalLM is implemented for 'default' only",
            )
        if parameters.has("rope_theta"):
            return _number(parameters, "rope_theta", DEFAULT_THETA)
    return _number(config, "rope_theta", DEFAULT_THETA)
