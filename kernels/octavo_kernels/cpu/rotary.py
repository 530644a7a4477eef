"""Rotary embedding in C: turned elements have the bits of `reference.rotary`, angles are within rounding of it."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape


def angles(
    positions: torch.Tensor, frequencies: torch.Tensor, amplitude: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference.rotary.angles`; both tensors contiguous."""
    require_dtype("positions", positions, torch.int64)
    require_dtype("frequencies", frequencies, torch.float32)
    require_shape("positions", positions, None)
    require_shape("frequencies", frequencies, None)
    require_contiguous(positions=positions, frequencies=frequencies)
    tokens, count = positions.shape[0], frequencies.shape[0]
    cosine, sine = torch.empty((tokens, count)), torch.empty((tokens, count))
    if cosine.numel():
        library.load().call("rotary_angles", positions, frequencies, cosine, sine, float(amplitude), tokens, count)
    return cosine, sine


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """See `reference.rotary.rotate`; all tensors contiguous."""
    require_dtype("x", x, torch.float32)
    require_dtype("cosine", cosine, torch.float32)
    require_dtype("sine", sine, torch.float32)
    require_shape("x", x, None, None, None)
    tokens, heads, dim = x.shape
    require_shape("cosine", cosine, tokens, None)
    require_shape("sine", sine, *cosine.shape)
    require_contiguous(x=x, cosine=cosine, sine=sine)
    count = cosine.shape[1]
    if 2 * count > dim:
        raise KernelInputError(f"cosine is for {2 * count} elements of a head, x has {dim}")
    out = torch.empty_like(x)
    if x.numel():
        library.load().call("rotary_rotate", x, cosine, sine, out, tokens, heads, dim, count, int(interleaved))
    return out
