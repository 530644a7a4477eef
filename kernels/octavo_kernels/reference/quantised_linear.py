"""Products of float32 activations with a quantised weight, weight-only or with quantised activations.

Weight-only (`Activations.EXACT`): the weight is dequantised to float32, and the product is a float32 one.

Quantised activations (`Activations.QUANTISED`), by the weight's format:

    FP8 blocks  W8A8: each row rounded by groups of 128 of K (`fp8_block.quantise_activations`); per group a product of
                the stored values in float32, times both scales, and the groups added in rising order
    NVFP4       W4A4: each row rounded by blocks of 16 with the weight's input_scale (`nvfp4.quantise_activations`); one
                float32 product of (value * block scale) on either side, times input_scale * global_scale
    INT4        W4A8: each row rounded to int8 by the weight's groups (`quantise_to_int8`); per group an exact integer
                product with (nibble - zero point), times both scales, and the groups added in rising order

Every result row has the same bits in every batch.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats import fp8, fp8_block, int4, nvfp4
from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.linear import Activations, QuantisedWeight
from octavo_kernels.formats.nvfp4 import Nvfp4Weight
from octavo_kernels.operations import LinearKernel
from octavo_kernels.reference.linear import linear

INT8_MAX = 127


class ReferenceQuantisedLinear(LinearKernel[QuantisedWeight]):
    """Plain torch; computes from the canonical layout."""

    def __init__(self, activations: Activations = Activations.EXACT) -> None:
        self.activations = activations

    def prepare(self, canonical: QuantisedWeight) -> QuantisedWeight:
        """The canonical layout itself: no second copy."""
        require_shape(
            "weight", canonical.values if isinstance(canonical, Fp8BlockWeight) else canonical.packed, None, None
        )
        check_activations(canonical, self.activations)
        return canonical

    def apply(self, x: torch.Tensor, prepared: QuantisedWeight) -> torch.Tensor:
        """See `LinearKernel.apply`."""
        return quantised_linear(x, prepared, self.activations)


def quantised_linear(x: torch.Tensor, weight: QuantisedWeight, activations: Activations) -> torch.Tensor:
    """`x @ weight.T`: x [T, K] float32, weight of logical shape [N, K], result [T, N] float32."""
    require_dtype("x", x, torch.float32)
    require_shape("x", x, None, weight.in_features)
    if activations is Activations.EXACT:
        return linear(x, dequantise(weight))
    check_activations(weight, activations)
    match weight:
        case Fp8BlockWeight():
            return _w8a8(x, weight)
        case Nvfp4Weight():
            return _w4a4(x, weight)
        case Int4Weight():
            return _w4a8(x, weight)


def check_activations(weight: QuantisedWeight, activations: Activations) -> None:
    """Raise KernelInputError where the weight lacks what rounding its activations needs."""
    if activations is Activations.QUANTISED and isinstance(weight, Nvfp4Weight):
        _input_scale(weight)


def dequantise(weight: QuantisedWeight) -> torch.Tensor:
    """The float32 weight [..., N, K]."""
    match weight:
        case Int4Weight():
            return int4.dequantise(weight)
        case Fp8BlockWeight():
            return fp8_block.dequantise(weight)
        case Nvfp4Weight():
            return nvfp4.dequantise(weight)


def quantise_to_int8(x: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Round activations by groups of G along K: x [T, K] float32 to values [T, K] int8 and scales [T, K/G] float32.

    A group's scale is max|x| / 127, 1.0 where that is below the smallest normal float32; its values are x / scale to
    nearest, ties to even. int8 has no NaN: a group with a NaN or an infinity has the scale NaN and values of 0, so that
    its products are NaN.
    """
    groups = x.view(x.shape[0], x.shape[1] // group_size, group_size)
    scales = groups.abs().amax(dim=-1) / INT8_MAX
    scales = torch.where(scales < torch.finfo(torch.float32).tiny, 1.0, scales)
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    steps = (groups / scales.unsqueeze(-1)).nan_to_num(0.0).round().clamp(-INT8_MAX, INT8_MAX)
    return steps.to(torch.int8).view_as(x), scales


def _w8a8(x: torch.Tensor, weight: Fp8BlockWeight) -> torch.Tensor:
    values, scales = fp8_block.quantise_activations(x)
    left, right = fp8.decode(values), fp8.decode(weight.values)
    total = x.new_zeros((x.shape[0], weight.out_features))
    for group in range(scales.shape[1]):
        k = slice(group * fp8_block.BLOCK, (group + 1) * fp8_block.BLOCK)
        weight_scale = weight.scales[:, group].repeat_interleave(fp8_block.BLOCK)[: weight.out_features]
        total = total + linear(left[:, k], right[:, k]) * (scales[:, group, None] * weight_scale)
    return total


def _w4a4(x: torch.Tensor, weight: Nvfp4Weight) -> torch.Tensor:
    input_scale = _input_scale(weight)
    left = nvfp4.block_values(*nvfp4.quantise_activations(x, input_scale))
    right = nvfp4.block_values(weight.packed, weight.scales)
    return linear(left, right) * (input_scale * weight.global_scale)


def _input_scale(weight: Nvfp4Weight) -> torch.Tensor:
    if weight.input_scale is None:
        raise KernelInputError("an NVFP4 weight without input_scale cannot have its activations quantised")
    return weight.input_scale


def _w4a8(x: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    values, scales = quantise_to_int8(x, weight.group_size)
    # Integers whose sums stay below 2**24 are exact in float32, and those of any group in float64.
    exact = torch.float32 if weight.group_size * INT8_MAX * int4.STEPS < 1 << 24 else torch.float64
    left, right = values.to(exact), int4.integers(weight).to(exact)
    weight_scales = weight.scales.float()
    total = x.new_zeros((x.shape[0], weight.out_features))
    for group in range(scales.shape[1]):
        k = slice(group * weight.group_size, (group + 1) * weight.group_size)
        sums = (left[:, k] @ right[:, k].t()).float()
        total = total + sums * (scales[:, group, None] * weight_scales[:, group])
    return total
