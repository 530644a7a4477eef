"""Published models rebuilt from their public config fields: config.json and every tensor's name, dtype and shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.checkpoints import FP8_MARKER, INT4_MARKER, Tensor, linear, linear_ct_int4, linear_fp8_block

Linear = Callable[[str, int, int], list[Tensor]]
Config = dict[str, object]


@dataclass(frozen=True)
class Mla:
    """Shapes of a DeepSeek-V3-like model."""

    layers: int
    hidden: int
    vocab: int
    heads: int
    q_rank: int
    nope: int
    value: int
    experts: int
    expert_width: int
    dense_width: int
    dense_layers: int
    indexer_layers: frozenset[int] = frozenset()
    indexer_heads: int = 32
    indexer_dim: int = 128
    mtp_layers: int = 0
    kv_rank: int = 512
    rope: int = 64

    def config(self, architecture: str, max_position_embeddings: int) -> Config:
        """The fields of config.json that describe shapes."""
        return {
            "architectures": [architecture],
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "vocab_size": self.vocab,
            "max_position_embeddings": max_position_embeddings,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.q_rank,
            "kv_lora_rank": self.kv_rank,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "v_head_dim": self.value,
            "n_routed_experts": self.experts,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": self.expert_width,
            "intermediate_size": self.dense_width,
            "first_k_dense_replace": self.dense_layers,
            "num_nextn_predict_layers": self.mtp_layers,
            "tie_word_embeddings": False,
        }

    def tensors(self, expert: Linear, attention: Linear, prefix: str = "") -> Iterator[Tensor]:
        """All tensors; `expert` stores routed experts, `attention` the large linears; the rest is BF16."""
        h = self.hidden
        yield (f"{prefix}model.embed_tokens.weight", "BF16", (self.vocab, h))
        yield (f"{prefix}lm_head.weight", "BF16", (self.vocab, h))
        yield (f"{prefix}model.norm.weight", "BF16", (h,))
        for index in range(self.layers + self.mtp_layers):
            layer = f"{prefix}model.layers.{index}"
            yield from self._attention(layer, attention, indexer=index in self.indexer_layers)
            yield (f"{layer}.input_layernorm.weight", "BF16", (h,))
            yield (f"{layer}.post_attention_layernorm.weight", "BF16", (h,))
            if index < self.dense_layers:
                yield from self._mlp(f"{layer}.mlp", self.dense_width, attention)
            else:
                yield (f"{layer}.mlp.gate.weight", "BF16", (self.experts, h))
                yield (f"{layer}.mlp.gate.e_score_correction_bias", "F32", (self.experts,))
                yield from self._mlp(f"{layer}.mlp.shared_experts", self.expert_width, attention)
                for number in range(self.experts):
                    yield from self._mlp(f"{layer}.mlp.experts.{number}", self.expert_width, expert)
            if index >= self.layers:
                yield from attention(f"{layer}.eh_proj", h, 2 * h)
                yield from ((f"{layer}.{name}.weight", "BF16", (h,)) for name in ("enorm", "hnorm", "shared_head.norm"))

    def _attention(self, layer: str, store: Linear, *, indexer: bool) -> Iterator[Tensor]:
        h, a = self.hidden, f"{layer}.self_attn"
        yield from store(f"{a}.q_a_proj", self.q_rank, h)
        yield from store(f"{a}.q_b_proj", self.heads * (self.nope + self.rope), self.q_rank)
        yield from store(f"{a}.kv_a_proj_with_mqa", self.kv_rank + self.rope, h)
        yield from linear(f"{a}.kv_b_proj", self.heads * (self.nope + self.value), self.kv_rank)
        yield from store(f"{a}.o_proj", h, self.heads * self.value)
        yield (f"{a}.q_a_layernorm.weight", "BF16", (self.q_rank,))
        yield (f"{a}.kv_a_layernorm.weight", "BF16", (self.kv_rank,))
        if indexer:
            yield from linear(f"{a}.indexer.wq_b", self.indexer_heads * self.indexer_dim, self.q_rank)
            yield from linear(f"{a}.indexer.wk", self.indexer_dim, h)
            yield from linear(f"{a}.indexer.weights_proj", self.indexer_heads, h)

    def _mlp(self, name: str, width: int, store: Linear) -> Iterator[Tensor]:
        yield from store(f"{name}.gate_proj", width, self.hidden)
        yield from store(f"{name}.up_proj", width, self.hidden)
        yield from store(f"{name}.down_proj", self.hidden, width)


KIMI_K26 = Mla(
    layers=61,
    hidden=7168,
    vocab=163840,
    heads=64,
    q_rank=1536,
    nope=128,
    value=128,
    experts=384,
    expert_width=2048,
    dense_width=18432,
    dense_layers=1,
)
GLM_52 = Mla(
    layers=78,
    hidden=6144,
    vocab=154880,
    heads=64,
    q_rank=2048,
    nope=192,
    value=256,
    experts=256,
    expert_width=2048,
    dense_width=12288,
    dense_layers=3,
    indexer_layers=frozenset({0, 1, 2, *range(6, 78, 4), 78}),
    mtp_layers=1,
)
"""The published 21 layers with an indexer of their own, and the one for multi-token prediction."""


def kimi_k26() -> tuple[Config, Iterator[Tensor]]:
    """Kimi K2.6 as published: INT4 group-32 routed experts (compressed-tensors), everything else BF16."""
    text = KIMI_K26.config("DeepseekV3ForCausalLM", 262144) | {"quantization_config": INT4_MARKER}
    config: Config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": text,
        "tie_word_embeddings": False,
    }
    return config, KIMI_K26.tensors(linear_ct_int4, linear, prefix="language_model.")


def glm_52_bf16() -> tuple[Config, Iterator[Tensor]]:
    """GLM-5.2 as published in BF16."""
    return GLM_52.config("GlmMoeDsaForCausalLM", 1048576), GLM_52.tensors(linear, linear)


def glm_52_fp8() -> tuple[Config, Iterator[Tensor]]:
    """GLM-5.2 as published in FP8: 128 x 128 blocks; kv_b and the indexer stay BF16."""
    config = GLM_52.config("GlmMoeDsaForCausalLM", 1048576) | {"quantization_config": FP8_MARKER}
    return config, GLM_52.tensors(linear_fp8_block, linear_fp8_block)


def gqa_config(architecture: str, **fields: object) -> Config:
    """config.json of a model with grouped-query attention; `fields` override Qwen3-30B-A3B's."""
    return {
        "architectures": [architecture],
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "tie_word_embeddings": False,
    } | fields


def gqa_tensors(config: Config, expert: Linear = linear, mlp: str = "mlp") -> Iterator[Tensor]:
    """All tensors of a model with grouped-query attention; dense when the config has no experts."""

    def size(*names: str) -> int:
        return next(value for name in names if isinstance(value := config.get(name), int))

    hidden, heads, kv_heads = size("hidden_size"), size("num_attention_heads"), size("num_key_value_heads")
    head_dim = size("head_dim")
    yield ("model.embed_tokens.weight", "BF16", (size("vocab_size"), hidden))
    yield ("lm_head.weight", "BF16", (size("vocab_size"), hidden))
    yield ("model.norm.weight", "BF16", (hidden,))
    experts = config.get("num_experts", config.get("num_local_experts"))
    names = ("w1", "w3", "w2") if mlp == "block_sparse_moe" else ("gate_proj", "up_proj", "down_proj")
    for index in range(size("num_hidden_layers")):
        layer = f"model.layers.{index}"
        for name, rows in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
            yield from linear(f"{layer}.self_attn.{name}", rows * head_dim, hidden)
        yield from linear(f"{layer}.self_attn.o_proj", hidden, heads * head_dim)
        yield (f"{layer}.input_layernorm.weight", "BF16", (hidden,))
        if not isinstance(experts, int):
            yield from _gqa_mlp(f"{layer}.mlp", names, size("intermediate_size"), hidden, linear)
            continue
        yield from linear(f"{layer}.{mlp}.gate", experts, hidden)
        width = size("moe_intermediate_size", "intermediate_size")
        for number in range(experts):
            yield from _gqa_mlp(f"{layer}.{mlp}.experts.{number}", names, width, hidden, expert)


def _gqa_mlp(name: str, names: tuple[str, str, str], width: int, hidden: int, store: Linear) -> Iterator[Tensor]:
    gate, up, down = names
    yield from store(f"{name}.{gate}", width, hidden)
    yield from store(f"{name}.{up}", width, hidden)
    yield from store(f"{name}.{down}", hidden, width)
