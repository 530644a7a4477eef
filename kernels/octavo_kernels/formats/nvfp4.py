"""NVFP4: e2m1 values in blocks of 16 along K, an e4m3 scale per block, a float32 scale per tensor.

    packed uint8         [..., N, K/2]   low nibble = even k; code = sign << 3 | index into VALUES
    scales float8_e4m3fn [..., N, K/16]
    global_scale float32 [...]           one per stacked weight, a factor
    w[n, k] = value(n, k) * scales[n, k // 16] * global_scale

ModelOpt stores the global scale like this (`weight_scale_2`); compressed-tensors stores its reciprocal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats import fp8

BLOCK = 16
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Nvfp4Weight:
    """One NVFP4 weight, or a stack of them, in canonical layout."""

    packed: torch.Tensor
    """[..., N, K/2] uint8."""
    scales: torch.Tensor
    """[..., N, K/16] float8_e4m3fn."""
    global_scale: torch.Tensor
    """[...] float32."""
    input_scale: torch.Tensor | None = None
    """[...] float32, the activations' tensor scale (a factor) where the checkpoint was calibrated; native W4A4 needs
    it."""

    def __post_init__(self) -> None:
        require_dtype("packed", self.packed, torch.uint8)
        require_dtype("scales", self.scales, fp8.DTYPE)
        require_dtype("global_scale", self.global_scale, torch.float32)
        *stack, _, _ = self.packed.shape
        if self.in_features % BLOCK:
            raise KernelInputError(f"{self.in_features} input features do not divide by the NVFP4 block of {BLOCK}")
        require_shape("scales", self.scales, *self.packed.shape[:-1], self.in_features // BLOCK)
        require_shape("global_scale", self.global_scale, *stack)
        if self.input_scale is not None:
            require_dtype("input_scale", self.input_scale, torch.float32)
            require_shape("input_scale", self.input_scale, *stack)

    @property
    def in_features(self) -> int:
        """K."""
        return 2 * self.packed.shape[-1]

    @property
    def out_features(self) -> int:
        """N."""
        return self.packed.shape[-2]

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales."""
        extra = 0 if self.input_scale is None else self.input_scale.nbytes
        return self.packed.nbytes + self.scales.nbytes + self.global_scale.nbytes + extra

    def select(self, index: int) -> Nvfp4Weight:
        """Slice `index` of the leading dimension, sharing memory."""
        scale = None if self.input_scale is None else self.input_scale[index]
        return Nvfp4Weight(self.packed[index], self.scales[index], self.global_scale[index], scale)
