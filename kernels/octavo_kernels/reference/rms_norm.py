"""RMSNorm (Zhang and Sennrich, arXiv 1910.07467)."""

from __future__ import annotations

import torch

from octavo_kernels.errors import require_dtype, require_shape


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`x / sqrt(mean(x**2) + epsilon) * weight` along the last dimension: x [..., H] float32, weight [H]."""
    require_dtype("x", x, torch.float32)
    require_shape("weight", weight, x.shape[-1])
    mean_square = x.pow(2).mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(mean_square + epsilon) * weight.float()
