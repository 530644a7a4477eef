"""FP8 weights with one float32 scale per 128 x 128 block (DeepSeek-V3, arXiv 2412.19437, section 3.3).

    values float8_e4m3fn [..., N, K]
    scales float32       [..., ceil(N/128), ceil(K/128)]
    w[n, k] = values[n, k] * scales[n // 128, k // 128]

Sizes need not divide by 128: the last block of a row or column is then smaller.

Activations get one scale per row and 128 elements of K, found as they come: `quantise_activations`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.formats.int4 import QuantisationError

BLOCK = 128


@dataclass(frozen=True)
class Fp8BlockWeight:
    """One FP8 block weight, or a stack of them, in canonical layout."""

    values: torch.Tensor
    """[..., N, K] float8_e4m3fn."""
    scales: torch.Tensor
    """[..., ceil(N/128), ceil(K/128)] float32; a factor, whatever a checkpoint calls it."""

    def __post_init__(self) -> None:
        require_dtype("values", self.values, fp8.DTYPE)
        require_dtype("scales", self.scales, torch.float32)
        *stack, n, k = self.values.shape
        require_shape("scales", self.scales, *stack, -(-n // BLOCK), -(-k // BLOCK))

    @property
    def in_features(self) -> int:
        """K."""
        return self.values.shape[-1]

    @property
    def out_features(self) -> int:
        """N."""
        return self.values.shape[-2]

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + self.scales.nbytes

    def select(self, index: int) -> Fp8BlockWeight:
        """Slice `index` of the leading dimension, sharing memory."""
        return Fp8BlockWeight(self.values[index], self.scales[index])


def quantise(weight: torch.Tensor) -> Fp8BlockWeight:
    """Round a floating-point weight [..., N, K] to FP8; each block's scale is its `fp8.dynamic_scale`.

    Raises QuantisationError when a value is NaN or infinite.
    """
    if weight.ndim < 2 or not weight.is_floating_point():
        raise KernelInputError(f"weight is {weight.dtype} {list(weight.shape)}, needed floating point [..., N, K]")
    if not bool(torch.isfinite(weight).all()):
        raise QuantisationError("a weight is NaN or infinite and has no FP8 block")
    *stack, n, k = weight.shape
    padded = F.pad(weight.float(), (0, -k % BLOCK, 0, -n % BLOCK))
    blocks = padded.view(*stack, -(-n // BLOCK), BLOCK, -(-k // BLOCK), BLOCK).transpose(-3, -2)
    scales = fp8.dynamic_scale(blocks.flatten(-2))
    return Fp8BlockWeight(fp8.encode(weight.float() / _spread(scales, n, k)), scales)


def dequantise(weight: Fp8BlockWeight) -> torch.Tensor:
    """The float32 weight [..., N, K]: value times scale, rounded once."""
    return fp8.decode(weight.values) * _spread(weight.scales, weight.out_features, weight.in_features)


def quantise_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round activations by groups of 128 along K: x [T, K] float32 to values [T, K] e4m3 and scales [T, ceil(K/128)].

    A group's scale is its `fp8.dynamic_scale`, so NaN stays NaN in its own place only and infinity becomes the largest
    float32.
    """
    require_dtype("x", x, torch.float32)
    require_shape("x", x, None, None)
    rows, k = x.shape
    scales = fp8.dynamic_scale(F.pad(x, (0, -k % BLOCK)).view(rows, -(-k // BLOCK), BLOCK))
    return fp8.encode(x / scales.repeat_interleave(BLOCK, dim=1)[:, :k]), scales


def _spread(scales: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """A factor for each element: [..., N, K]."""
    return scales.repeat_interleave(BLOCK, dim=-2)[..., :n, :].repeat_interleave(BLOCK, dim=-1)[..., :k]
