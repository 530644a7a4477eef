"""Normalisation and rotary embedding as Hugging Face's Qwen3 has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


class RmsNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension, then a learnt scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        out: Tensor = _RmsNorm.apply(x, self.weight, self.eps)
        return out


class _RmsNorm(Function):
    """The gradient by hand: bound by memory, it goes over the data half as often as autograd's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = (norm.square() / x.shape[-1] + eps).rsqrt()
        unit = x * inverse
        ctx.save_for_backward(unit, weight, inverse)
        scaled: Tensor = unit * weight
        return scaled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, weight, inverse = ctx.saved_tensors
        product = grad * unit
        along = (product @ weight).unsqueeze(-1) / -unit.shape[-1]
        grad_x = torch.addcmul(grad * weight, unit, along).mul_(inverse)
        return grad_x, product.flatten(0, -2).sum(0), None


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [batch, heads, tokens, head_dim], halves paired as in Hugging Face's Qwen3, by the angles whose
    cosines and sines are [tokens, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    turned: Tensor = x * cos + torch.cat((-second, first), dim=-1) * sin
    return turned
