"""FP8 weights with one float32 scale per 128 x 128 block (DeepSeek-V3, arXiv 2412.19437, section 3.3).

    values float8_e4m3fn [..., N, K]
    scales float32       [..., ceil(N/128), ceil(K/128)]
    w[n, k] = values[n, k] * scales[n // 128, k // 128]

Sizes need not divide by 128: the last block of a row or column is then smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.errors import require_dtype, require_shape
from octavo_kernels.formats import fp8

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
