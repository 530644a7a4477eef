"""Rotary position embedding (Su et al., arXiv 2104.09864), whole or of a head's first elements, and its YaRN scaling.

A pair of elements is a complex number, multiplied by exp(i * position * frequency). Models pair elements in two ways:
half-split, d with d + R/2 (GPT-NeoX, Llama, Qwen), or interleaved, 2d with 2d + 1 (GPT-J, DeepSeek).
"""

from __future__ import annotations

import math

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape


def inverse_frequencies(head_dim: int, theta: float, device: torch.device) -> torch.Tensor:
    """`theta ** (-2i / D)` for i in 0..D/2-1: [D/2] float32; raises KernelInputError for an odd head dimension.

    For partial rotation `head_dim` is the number of rotated elements.
    """
    if head_dim % 2:
        raise KernelInputError(f"head_dim is {head_dim}, needed an even number for rotary embedding")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return (1.0 / theta**exponents).to(device)


def yarn_frequencies(
    head_dim: int,
    theta: float,
    device: torch.device,
    *,
    factor: float,
    original_context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> torch.Tensor:
    """Frequencies for a context stretched by `factor`: [D/2] float32 (YaRN, arXiv 2309.00071, section 3.2).

    Pairs that turn more than `beta_fast` times within `original_context` tokens keep their frequency, those that turn
    less than `beta_slow` times are slowed by `factor`, and between the two a ramp over the pair's index mixes both.
    `truncate` puts the ramp's ends on whole indices, as the models that use YaRN were trained.
    """
    plain = inverse_frequencies(head_dim, theta, device)

    def index_of(turns: float) -> float:
        return head_dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = index_of(beta_fast), index_of(beta_slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    # A ramp without width is a step.
    width = last - first or 0.001
    slowed = ((torch.arange(head_dim // 2, dtype=torch.float32, device=device) - first) / width).clamp(0, 1)
    return plain / factor * slowed + plain * (1 - slowed)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """`0.1 * mscale * ln(factor) + 1`, 1 where nothing is stretched: how much longer contexts sharpen attention.

    DeepSeek multiplies its softmax scale by the square of `yarn_mscale(factor, mscale_all_dim)`.
    """
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def yarn_amplitude(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """What `angles` multiplies cosine and sine by: YaRN's own, or the quotient of the two where a model gives both."""
    if mscale and mscale_all_dim:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
    return yarn_mscale(factor)


def angles(
    positions: torch.Tensor, frequencies: torch.Tensor, amplitude: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of positions [T] int64 with frequencies [R/2] float32, times `amplitude`: each [T, R/2] float32.

    The phase is a float32 product, as the models compute it.
    """
    require_dtype("positions", positions, torch.int64)
    require_dtype("frequencies", frequencies, torch.float32)
    phase = positions.float()[:, None] * frequencies[None, :]
    return phase.cos() * amplitude, phase.sin() * amplitude


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Rotate the first R elements of each head by `angles` and pass the rest on; a new tensor of the same shape.

    x [T, heads, D] float32, cosine and sine [T, R/2] float32 with R <= D. Pairs are (i, i + R/2), or (2i, 2i + 1) if
    `interleaved`; rotated pairs stay in their places.
    """
    require_dtype("x", x, torch.float32)
    require_shape("x", x, None, None, None)
    require_shape("cosine", cosine, x.shape[0], None)
    require_shape("sine", sine, *cosine.shape)
    rotated = 2 * cosine.shape[1]
    if rotated > x.shape[2]:
        raise KernelInputError(f"cosine is for {rotated} elements of a head, x has {x.shape[2]}")
    turned, rest = x[..., :rotated], x[..., rotated:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    pairs = first * cosine - second * sine, second * cosine + first * sine
    turned = torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)
    return torch.cat((turned, rest), dim=-1)
