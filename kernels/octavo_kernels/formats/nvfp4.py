"""NVFP4: e2m1 values in blocks of 16 along K, an e4m3 scale per block, a float32 scale per tensor.

    packed uint8         [..., N, K/2]   low nibble = even k; code = sign << 3 | index into VALUES
    scales float8_e4m3fn [..., N, K/16]
    global_scale float32 [...]           one per stacked weight, a factor
    w[n, k] = value(n, k) * scales[n, k // 16] * global_scale

ModelOpt stores the global scale like this (`weight_scale_2`); compressed-tensors stores its reciprocal.

Rounding to e2m1 is to nearest, ties to the even code, saturating at +-6; NaN, which e2m1 lacks, becomes +6, all as
`cvt.rn.satfinite.e2m1x2.f32` does. In quantised activations NaN is kept by the block's scale instead, see there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.formats.int4 import QuantisationError

BLOCK = 16
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By code, sign left out."""
LARGEST = 6.0
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between neighbouring values; the middle itself goes to the even code of the two."""


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


def encode(values: torch.Tensor) -> torch.Tensor:
    """Round floating-point values to e2m1 codes, uint8 0..15 in the same shape; see above for NaN."""
    magnitude = values.float().abs()
    index = torch.zeros_like(magnitude, dtype=torch.uint8)
    for code, middle in enumerate(_MIDDLES):
        # From an odd code the middle goes up, to the even one.
        index += (magnitude >= middle) if code % 2 else (magnitude > middle)
    sign = torch.signbit(values).to(torch.uint8) << 3
    return torch.where(values.isnan(), len(VALUES) - 1, index | sign)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """The float32 values of e2m1 codes (uint8 0..15), same shape."""
    table = torch.tensor([*VALUES, *(-value for value in VALUES)], device=codes.device)
    return table[codes.int()]


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes uint8 [..., K] to uint8 [..., K/2], low nibble = even k; raises KernelInputError for odd K."""
    require_dtype("codes", codes, torch.uint8)
    if codes.shape[-1] % 2:
        raise KernelInputError(f"codes has {codes.shape[-1]} entries along K, needed an even number")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 of a packed tensor: uint8 [..., K/2] to uint8 [..., K]."""
    require_dtype("packed", packed, torch.uint8)
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def quantise(weight: torch.Tensor) -> Nvfp4Weight:
    """Round a floating-point weight [..., N, K] to NVFP4.

    The global scale of each stacked weight makes its largest block scale 448: max|w| / (6 * 448), 1.0 for a weight of
    zeros. Raises QuantisationError when a value is NaN or infinite, KernelInputError when 16 does not divide K.
    """
    if weight.ndim < 2 or not weight.is_floating_point():
        raise KernelInputError(f"weight is {weight.dtype} {list(weight.shape)}, needed floating point [..., N, K]")
    largest = weight.float().abs().flatten(-2).amax(dim=-1)
    if not bool(torch.isfinite(largest).all()):
        raise QuantisationError("a weight is NaN or infinite and has no NVFP4 value")
    global_scale = largest / (LARGEST * fp8.MAX)
    global_scale = torch.where(global_scale < torch.finfo(torch.float32).tiny, 1.0, global_scale)
    packed, scales = _quantise_blocks(weight.float() / global_scale[..., None, None])
    return Nvfp4Weight(packed, scales, global_scale)


def block_values(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """e2m1 value times block scale, exact in float32 (in bfloat16 too): [..., K/2] and [..., K/16] to [..., K]."""
    values = decode(unpack(packed))
    blocks = values.view(*scales.shape, BLOCK) * fp8.decode(scales).unsqueeze(-1)
    return blocks.flatten(-2)


def dequantise(weight: Nvfp4Weight) -> torch.Tensor:
    """The float32 weight [..., N, K]: (value * scale) * global_scale, rounded once."""
    return block_values(weight.packed, weight.scales) * weight.global_scale[..., None, None]


def quantise_activations(x: torch.Tensor, input_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round activations by blocks of 16 along K: x [T, K] float32 and input_scale [] float32 (a factor) to packed codes
    [T, K/2] uint8 and block scales [T, K/16] e4m3.

    With y = x / input_scale, a block's scale is max|y| / 6 rounded to e4m3 and its codes are those of y / scale, zeros
    where the scale rounds to zero. A block with a NaN gets the scale NaN, so all of it is NaN; infinity saturates.
    """
    require_dtype("x", x, torch.float32)
    require_shape("x", x, None, None)
    require_dtype("input_scale", input_scale, torch.float32)
    require_shape("input_scale", input_scale)
    return _quantise_blocks(x / input_scale)


def _quantise_blocks(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if y.shape[-1] % BLOCK:
        raise KernelInputError(f"{y.shape[-1]} input features do not divide by the NVFP4 block of {BLOCK}")
    blocks = y.reshape(*y.shape[:-1], y.shape[-1] // BLOCK, BLOCK)
    scales = fp8.encode(blocks.abs().amax(dim=-1) / LARGEST)
    step = fp8.decode(scales).unsqueeze(-1)
    codes = encode(torch.where(step == 0, 0.0, blocks) / torch.where(step == 0, 1.0, step))
    return pack(codes.flatten(-2)), scales
