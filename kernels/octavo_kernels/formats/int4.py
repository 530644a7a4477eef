"""INT4: groups along K, two values per byte, BF16 scales; symmetric, or with a zero point per group.

Canonical layout of a weight [..., N, K] (N outputs, K inputs) with group size G:

    packed  uint8    [..., N, K/2]   low nibble = even k; a value q in -8..7 is stored as q + 8
    scales  bfloat16 [..., N, K/G]
    zeros   uint8    [..., N, K/G]   0..15, only where the checkpoint is asymmetric; 8 everywhere else
    w[n, k] = (nibble(n, k) - zeros[n, k // G]) * scales[n, k // G]

The nibbles run in the order of compressed-tensors' pack-quantized words (low nibble first along K), so such a
checkpoint is this layout once its int32 words are viewed as bytes.

Round to nearest: the scale is max|w| / 7.5 of the group, rounded to BF16. Half a step beyond 7 either way is then the
largest value met, so clamping to -8..7 never costs more than rounding does (published INT4 checkpoints do the same).
Asymmetric, the 15 steps span the group's values and zero, and the zero point is the whole step nearest to the lowest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape

ZERO = 8
"""Stored value of q = 0."""
LOWEST, HIGHEST = -8, 7
HALF_RANGE = 7.5
"""Steps from zero to the largest magnitude: half of HIGHEST - LOWEST."""
STEPS = 15
"""Largest stored value, and steps between the smallest and the largest."""


class QuantisationError(ValueError):
    """Weights that cannot be quantised: the message names the size that does not divide, or the value met."""


@dataclass(frozen=True)
class Int4Weight:
    """One INT4 weight, or a stack of them, in canonical layout."""

    packed: torch.Tensor
    """[..., N, K/2] uint8."""
    scales: torch.Tensor
    """[..., N, K/G] bfloat16."""
    group_size: int
    zeros: torch.Tensor | None = None
    """[..., N, K/G] uint8, 0..15; None means 8, symmetric."""

    def __post_init__(self) -> None:
        require_dtype("packed", self.packed, torch.uint8)
        require_dtype("scales", self.scales, torch.bfloat16)
        check_group(self.in_features, self.group_size)
        require_shape("scales", self.scales, *self.packed.shape[:-1], self.in_features // self.group_size)
        if self.zeros is not None:
            require_dtype("zeros", self.zeros, torch.uint8)
            require_shape("zeros", self.zeros, *self.scales.shape)

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
        """Bytes of values, scales and zero points."""
        return self.packed.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    @classmethod
    def empty(cls, *shape: int, group_size: int, device: torch.device, zero_points: bool = False) -> Int4Weight:
        """Unset memory for a weight of logical shape [..., N, K], to be filled slice by slice through `store`."""
        *rows, in_features = shape
        check_group(in_features, group_size)
        groups = (*rows, in_features // group_size)
        return cls(
            packed=torch.empty((*rows, in_features // 2), dtype=torch.uint8, device=device),
            scales=torch.empty(groups, dtype=torch.bfloat16, device=device),
            group_size=group_size,
            zeros=torch.empty(groups, dtype=torch.uint8, device=device) if zero_points else None,
        )

    def select(self, index: int) -> Int4Weight:
        """Slice `index` of the leading dimension, sharing memory."""
        zeros = None if self.zeros is None else self.zeros[index]
        return Int4Weight(self.packed[index], self.scales[index], self.group_size, zeros)

    def rows(self, start: int, stop: int) -> Int4Weight:
        """Output rows `start` to `stop` of the last two dimensions, sharing memory."""
        zeros = None if self.zeros is None else self.zeros[..., start:stop, :]
        return Int4Weight(self.packed[..., start:stop, :], self.scales[..., start:stop, :], self.group_size, zeros)

    def store(self, weight: Int4Weight) -> None:
        """Copy `weight`, of the same logical shape and group size, into this memory.

        Memory without zero points takes only symmetric weights; memory with them takes both.
        """
        if weight.group_size != self.group_size:
            raise KernelInputError(f"weight has group size {weight.group_size}, needed {self.group_size}")
        require_shape("weight.packed", weight.packed, *self.packed.shape)
        if self.zeros is None and weight.zeros is not None:
            raise KernelInputError("weight has zero points, the memory to store it in has none")
        self.packed.copy_(weight.packed)
        self.scales.copy_(weight.scales)
        if self.zeros is not None:
            self.zeros.copy_(weight.zeros) if weight.zeros is not None else self.zeros.fill_(ZERO)


def check_group(in_features: int, group_size: int) -> None:
    """Raise QuantisationError unless K is a positive multiple of an even positive group size."""
    if group_size < 2 or group_size % 2:
        raise QuantisationError(f"group size {group_size} is not an even number of at least 2")
    if in_features < 1 or in_features % group_size:
        raise QuantisationError(f"{in_features} input features do not divide by the INT4 group size {group_size}")


def quantise(weight: torch.Tensor, group_size: int, *, asymmetric: bool = False) -> Int4Weight:
    """Round a floating-point weight [..., N, K] to nearest INT4, with zero points if `asymmetric`.

    Raises QuantisationError when K is no multiple of the group size or a value is NaN or infinite.
    """
    if weight.ndim < 2 or not weight.is_floating_point():
        raise KernelInputError(f"weight is {weight.dtype} {list(weight.shape)}, needed floating point [..., N, K]")
    check_group(weight.shape[-1], group_size)
    groups = _grouped(weight.float(), group_size)
    lowest, highest = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
    span = highest - lowest if asymmetric else torch.maximum(highest, -lowest)
    if not bool(torch.isfinite(span).all()):
        raise QuantisationError("a weight is NaN or infinite and has no INT4 value")
    scales = (span / (STEPS if asymmetric else HALF_RANGE)).bfloat16()
    # A group of zeros has no step; any step gives q = 0.
    step = torch.where(scales > 0, scales, 1.0).float()
    zeros = (-lowest / step).round().clamp(0, STEPS) if asymmetric else torch.full_like(step, ZERO)
    stored = ((groups / step.unsqueeze(-1)).round() + zeros.unsqueeze(-1)).clamp(0, STEPS)
    packed = _pack_stored(stored.to(torch.uint8).flatten(-2))
    return Int4Weight(packed, scales, group_size, zeros.to(torch.uint8) if asymmetric else None)


def pack(values: torch.Tensor) -> torch.Tensor:
    """Pack int8 values -8..7 [..., K] into uint8 [..., K/2], low nibble = even k; raises KernelInputError for odd K."""
    if values.shape[-1] % 2:
        raise KernelInputError(f"values has {values.shape[-1]} entries along K, needed an even number")
    return _pack_stored((values.to(torch.int8) + ZERO).to(torch.uint8))


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Values -8..7 of a packed tensor without zero points: uint8 [..., K/2] to int8 [..., K]."""
    return _unpack_stored(packed) - ZERO


def integers(weight: Int4Weight) -> torch.Tensor:
    """What the scales multiply, zero points taken off: int8 [..., N, K], -8..7 if symmetric, else -15..15."""
    zeros = ZERO if weight.zeros is None else weight.zeros.to(torch.int8).unsqueeze(-1)
    return (_grouped(_unpack_stored(weight.packed), weight.group_size) - zeros).flatten(-2)


def dequantise(weight: Int4Weight) -> torch.Tensor:
    """The float32 weight [..., N, K]: value times scale, exact in float32."""
    groups = _grouped(integers(weight).float(), weight.group_size)
    groups *= weight.scales.float().unsqueeze(-1)
    return groups.flatten(-2)


def _pack_stored(stored: torch.Tensor) -> torch.Tensor:
    return stored[..., 0::2] | (stored[..., 1::2] << 4)


def _unpack_stored(packed: torch.Tensor) -> torch.Tensor:
    """Stored values 0..15 as int8."""
    require_dtype("packed", packed, torch.uint8)
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).to(torch.int8)


def _grouped(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """[..., K] as [..., K/G, G]."""
    return weight.reshape(*weight.shape[:-1], weight.shape[-1] // group_size, group_size)
