"""Small Qwen3-MoE checkpoints in Hugging Face layout, written with the safetensors library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Shape:
    """What the checkpoint looks like."""

    vocab: int = 96
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    experts: int = 4
    top_k: int = 2
    intermediate: int = 32
    tied: bool = True

    def config(self, **changed: object) -> dict[str, object]:
        """config.json as published Qwen3-MoE checkpoints spell it."""
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.intermediate,
            "intermediate_size": 4 * self.hidden,
            "max_position_embeddings": 512,
            "norm_topk_prob": True,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            **changed,
        }

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's published name and shape."""
        hidden, width = self.hidden, self.heads * self.head_dim
        sizes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tied:
            sizes["lm_head.weight"] = (self.vocab, hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            sizes |= {
                f"{prefix}.input_layernorm.weight": (hidden,),
                f"{prefix}.post_attention_layernorm.weight": (hidden,),
                f"{prefix}.self_attn.q_proj.weight": (width, hidden),
                f"{prefix}.self_attn.k_proj.weight": (self.kv_heads * self.head_dim, hidden),
                f"{prefix}.self_attn.v_proj.weight": (self.kv_heads * self.head_dim, hidden),
                f"{prefix}.self_attn.o_proj.weight": (hidden, width),
                f"{prefix}.self_attn.q_norm.weight": (self.head_dim,),
                f"{prefix}.self_attn.k_norm.weight": (self.head_dim,),
                f"{prefix}.mlp.gate.weight": (self.experts, hidden),
            }
            for expert in range(self.experts):
                sizes |= {
                    f"{prefix}.mlp.experts.{expert}.gate_proj.weight": (self.intermediate, hidden),
                    f"{prefix}.mlp.experts.{expert}.up_proj.weight": (self.intermediate, hidden),
                    f"{prefix}.mlp.experts.{expert}.down_proj.weight": (hidden, self.intermediate),
                }
        return sizes

    def tensors(self, seed: int = 0) -> dict[str, torch.Tensor]:
        """Random BF16 weights; norms around one, matrices that keep the size of what they multiply."""
        generator = torch.Generator().manual_seed(seed)

        def random(size: tuple[int, ...]) -> torch.Tensor:
            values = torch.randn(size, generator=generator)
            return (1 + values / 10 if len(size) == 1 else values * size[-1] ** -0.5).bfloat16()

        return {name: random(size) for name, size in self.sizes().items()}


def write(
    directory: Path, config: Mapping[str, object], tensors: Mapping[str, torch.Tensor], *, shards: int = 1
) -> Path:
    """Write a checkpoint; several shards are dealt the tensors in turn, so that each layer lies in all of them."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: tensors[key] for key in list(tensors)[shard::shards]}
        save_file(part, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory
