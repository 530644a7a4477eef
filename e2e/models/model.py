"""A plain PyTorch Qwen3-MoE for training on a CPU, with the parameter layout of transformers' ``Qwen3MoeForCausalLM``.

It exists because it is faster here than the library's class: tokens are sorted by expert once per layer and each
expert is two dense products. Its logits equal the library's (tests/e2e_models hold it to that).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .primitives import RmsNorm, rotary
from .recipe import ModelShape


class Attention(nn.Module):
    """Grouped-query attention with a norm on each query and key head, then rotary embedding."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        q_size = shape.num_attention_heads * shape.head_dim
        kv_size = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, shape.hidden_size, bias=False)
        self.q_norm = RmsNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RmsNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x`` [batch, tokens, hidden] f32 -> the same shape."""
        batch, tokens, _ = x.shape
        heads = (batch, tokens, -1, self.shape.head_dim)
        q = rotary(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), cos, sin)
        k = rotary(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))
        return mixed


class Router(nn.Module):
    """Scores of the experts; a module of its own so that the parameter is named ``mlp.gate.weight``."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.num_experts, shape.hidden_size))


class Experts(nn.Module):
    """All experts' weights, stacked: ``gate_up_proj`` [E, 2I, H], ``down_proj`` [E, H, I]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        num, hidden, inner = shape.num_experts, shape.hidden_size, shape.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(num, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(num, hidden, inner))


class SparseMlp(nn.Module):
    """Top-k routed SwiGLU experts."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.gate = Router(shape)
        self.experts = Experts(shape)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` [tokens, hidden] -> (output of the same shape, load-balancing loss scalar; 1.0 when balanced)."""
        num, top_k = self.shape.num_experts, self.shape.num_experts_per_tok
        probs = F.linear(x, self.gate.weight).softmax(-1)
        top, chosen = probs.topk(top_k, dim=-1)
        top = top / top.sum(-1, keepdim=True)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=num)
        token = order // top_k
        parts = torch.split(x[token], counts.tolist())
        outs = []
        for part, gate_up, down in zip(
            parts, self.experts.gate_up_proj.unbind(), self.experts.down_proj.unbind(), strict=True
        ):
            gate, up = F.linear(part, gate_up).chunk(2, dim=-1)
            outs.append(F.linear(F.silu(gate) * up, down))
        weighted = torch.cat(outs) * top.flatten()[order].unsqueeze(-1)
        out = torch.zeros_like(x).index_add(0, token, weighted)
        share = counts.to(x.dtype) / flat.numel()
        return out, num * (share * probs.mean(0)).sum()


class Layer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = SparseMlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, tokens, hidden] -> (the same shape, load-balancing loss)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out, balance = self.mlp(self.post_attention_layernorm(x).flatten(0, 1))
        return x + out.view_as(x), balance


class TinyMoe(nn.Module):
    """The language model; the output head is the embedding matrix (tied)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """``ids`` [batch, tokens] int64 -> (logits [batch, tokens, vocab] f32, mean load-balancing loss)."""
        cos, sin = rotary_tables(ids.shape[1], self.shape)
        x = self.embed_tokens(ids)
        balance = x.new_zeros(())
        for layer in self.layers:
            x, layer_balance = layer(x, cos, sin)
            balance = balance + layer_balance
        return F.linear(self.norm(x), self.embed_tokens.weight), balance / len(self.layers)

    def initialise(self, seed: int) -> None:
        """Normal weights of standard deviation 0.02, output projections smaller by sqrt(2 layers)."""
        generator = torch.Generator().manual_seed(seed)
        shrink = (2 * self.shape.num_hidden_layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                nn.init.ones_(parameter)
                continue
            std = 0.02 * (shrink if name.endswith(("o_proj.weight", "down_proj")) else 1.0)
            nn.init.normal_(parameter, std=std, generator=generator)


def rotary_tables(tokens: int, shape: ModelShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines [tokens, head_dim] f32, the second half a copy of the first."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32), shape.rope_theta**-exponent)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()
