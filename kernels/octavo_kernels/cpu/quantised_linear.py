"""Linear layer over an INT4, FP8 block or NVFP4 weight, in C.

INT4 has both ways to multiply of `reference.quantised_linear`, the other formats are weight-only. A row's result has
the same bits whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.cpu import library
from octavo_kernels.cpu.activations import check_activations, uses_integers
from octavo_kernels.cpu.packing import PackedWeight, pack
from octavo_kernels.errors import require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.linear import Activations, QuantisedWeight
from octavo_kernels.formats.nvfp4 import Nvfp4Weight
from octavo_kernels.operations import LinearKernel


@dataclass(frozen=True)
class PackedLinear:
    """One weight in the layout of the loaded instruction set."""

    weight: PackedWeight
    in_features: int
    out_features: int

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.weight.nbytes


class CpuQuantisedLinear(LinearKernel[PackedLinear]):
    """INT4, FP8 blocks or NVFP4; with `activations` None, what is fastest on this CPU."""

    def __init__(self, activations: Activations | None = None) -> None:
        self.activations = activations

    def prepare(self, canonical: QuantisedWeight) -> PackedLinear:
        """See `LinearKernel.prepare`; INT4 group sizes are multiples of 8."""
        check_activations(canonical, self.activations)
        stored = canonical.values if isinstance(canonical, Fp8BlockWeight) else canonical.packed
        require_shape("weight", stored, None, None)
        return PackedLinear(pack(_stacked(canonical)), canonical.in_features, stored.shape[0])

    def apply(self, x: torch.Tensor, prepared: PackedLinear) -> torch.Tensor:
        """See `LinearKernel.apply`; raises KernelInputError for other shapes, dtypes or strides."""
        require_dtype("x", x, torch.float32)
        require_shape("x", x, None, prepared.in_features)
        require_contiguous(x=x)
        rows, weight = x.shape[0], prepared.weight
        out = torch.empty((rows, prepared.out_features), dtype=torch.float32)
        if not out.numel():
            return out
        padded = values = scales = sums = None
        if uses_integers(weight.format, self.activations):
            values = torch.empty((rows, weight.in_features), dtype=torch.int8)
            scales = torch.empty((rows, weight.in_features // weight.group), dtype=torch.float32)
            sums = torch.empty_like(scales, dtype=torch.int32)
        elif weight.in_features != prepared.in_features:
            padded = torch.empty((rows, weight.in_features), dtype=torch.float32)
        library.load().call(
            "packed_linear",
            *(x, out, padded, values, scales, sums, *weight.tensors),
            *(weight.format, weight.group, weight.in_features, weight.pairs),
            *(prepared.in_features, prepared.out_features, rows),
        )
        return out


def _stacked(weight: QuantisedWeight) -> QuantisedWeight:
    """The same memory as a stack of one."""
    match weight:
        case Int4Weight():
            zeros = None if weight.zeros is None else weight.zeros[None]
            return Int4Weight(weight.packed[None], weight.scales[None], weight.group_size, zeros)
        case Fp8BlockWeight():
            return Fp8BlockWeight(weight.values[None], weight.scales[None])
        case Nvfp4Weight():
            return Nvfp4Weight(weight.packed[None], weight.scales[None], weight.global_scale[None])
