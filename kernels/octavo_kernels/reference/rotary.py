"""Rotary position embedding in the half-split form (Su et al., arXiv 2104.09864; GPT-NeoX pairing d with d + D/2)."""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape


def inverse_frequencies(head_dim: int, theta: float, device: torch.device) -> torch.Tensor:
    """`theta ** (-2i / D)` for i in 0..D/2-1: [D/2] float32; raises KernelInputError for an odd head dimension."""
    if head_dim % 2:
        raise KernelInputError(f"head_dim is {head_dim}, needed an even number for rotary embedding")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return (1.0 / theta**exponents).to(device)


def angles(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine per position: positions [T] int64, frequencies [D/2] float32, each result [T, D/2] float32."""
    require_dtype("positions", positions, torch.int64)
    phase = positions.float()[:, None] * frequencies[None, :]
    return phase.cos(), phase.sin()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate heads x [T, heads, D] float32 by `angles`; returns a new tensor of the same shape."""
    half = x.shape[-1] // 2
    require_shape("cosine", cosine, x.shape[0], half)
    first, second = x[..., :half], x[..., half:]
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
