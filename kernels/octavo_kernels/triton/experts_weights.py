"""The layout that the products read, made from the canonical one.

values   [E, n, k] bfloat16 or e4m3, or u8 [E, n, k/2], as in the canonical layout, but where gate and up are
         fused: there row 2i is gate row i and row 2i + 1 is up row i, so that one program holds both of a pair
         (n padded with zeros to whole tiles; of the n rows in the shape none is padding)
scales   INT4 and NVFP4: [E, k/G, n], so that the scales of a tile are neighbours; FP8: canonical
zeros    as the scales
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.experts import CanonicalExperts
from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.nvfp4 import Nvfp4Weight
from octavo_kernels.triton.aot_case import Architecture
from octavo_kernels.triton.experts_tiles import NVFP4_DEPTH, ROWS_DIVIDE, Arithmetic, depth_of, has_fp8, has_nvfp4

INT4_GROUPS = (32, 64, 128)

CanonicalMatrix = torch.Tensor | Int4Weight | Fp8BlockWeight | Nvfp4Weight


@dataclass(frozen=True)
class StoredMatrix:
    """A stack of E weight matrices [n, k], laid out for the products."""

    arithmetic: Arithmetic
    shape: tuple[int, int, int]
    """E, n, k."""
    values: torch.Tensor
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    """u8, of INT4 with zero points."""
    global_scales: torch.Tensor | None = None
    """[E] float32, of NVFP4: factor of a product, with the input scale where activations are quantised."""
    input_scales: torch.Tensor | None = None
    """[E] float32, of native NVFP4."""
    group: int = 128
    """Inputs that share a scale."""

    @property
    def nbytes(self) -> int:
        """Bytes of everything stored."""
        parts = (self.values, self.scales, self.zeros, self.global_scales, self.input_scales)
        return sum(part.nbytes for part in parts if part is not None)


@dataclass(frozen=True)
class StoredExperts:
    """One layer's experts."""

    gate_up: StoredMatrix
    """[E, 2I, H], gate and up rows alternating."""
    down: StoredMatrix
    """[E, H, I]."""

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.gate_up.nbytes + self.down.nbytes


def store_experts(canonical: CanonicalExperts, architecture: Architecture) -> StoredExperts:
    """Lay out one layer; raises KernelInputError for sizes that the products cannot take."""
    gate_up, down = canonical.gate_up, canonical.down
    # Both products have one arithmetic: without what either needs for native NVFP4, neither takes it.
    if isinstance(gate_up, Nvfp4Weight) and not _can_be_native(gate_up, down):
        gate_up = replace(gate_up, input_scale=None)
    if isinstance(down, Nvfp4Weight) and not _can_be_native(canonical.gate_up, down):
        down = replace(down, input_scale=None)
    return StoredExperts(store_matrix(gate_up, architecture, paired=True), store_matrix(down, architecture))


def _can_be_native(*weights: CanonicalMatrix) -> bool:
    """Whether all are NVFP4 with what W4A4 needs of them."""
    return all(
        isinstance(weight, Nvfp4Weight) and weight.input_scale is not None and weight.in_features % NVFP4_DEPTH == 0
        for weight in weights
    )


def store_matrix(canonical: CanonicalMatrix, architecture: Architecture, *, paired: bool = False) -> StoredMatrix:
    """Lay out a stack [E, n, k]; `paired` makes the first and second half of its rows alternate."""
    native = has_fp8(architecture)
    match canonical:
        case torch.Tensor():
            return StoredMatrix(Arithmetic.BF16, _shape(canonical, 1), _rows(canonical, paired))
        case Int4Weight():
            if canonical.group_size not in INT4_GROUPS:
                raise KernelInputError(f"group size is {canonical.group_size}, needed one of {INT4_GROUPS}")
            return StoredMatrix(
                Arithmetic.INT4,
                _shape(canonical.packed, 2),
                _rows(canonical.packed, paired),
                scales=_columns(canonical.scales, paired),
                zeros=None if canonical.zeros is None else _columns(canonical.zeros, paired),
                group=canonical.group_size,
            )
        case Fp8BlockWeight():
            values = _rows(canonical.values.view(torch.uint8), paired)
            return StoredMatrix(
                Arithmetic.FP8 if native else Arithmetic.FP8_AS_BF16,
                _shape(canonical.values, 1),
                values.view(torch.float8_e4m3fn) if native else values,
                scales=canonical.scales.contiguous(),
            )
        case Nvfp4Weight():
            shape = _shape(canonical.packed, 2)
            if canonical.input_scale is not None and has_nvfp4(architecture) and _can_be_native(canonical):
                return StoredMatrix(
                    Arithmetic.NVFP4,
                    shape,
                    _rows(canonical.packed, paired),
                    scales=_rows(canonical.scales.view(torch.uint8), paired).view(torch.float8_e4m3fn),
                    global_scales=canonical.global_scale * canonical.input_scale,
                    input_scales=canonical.input_scale.contiguous(),
                    group=16,
                )
            return StoredMatrix(
                Arithmetic.NVFP4_AS_BF16,
                shape,
                _rows(canonical.packed, paired),
                scales=_columns(canonical.scales.view(torch.uint8), paired),
                global_scales=canonical.global_scale.contiguous(),
                group=16,
            )


def _shape(values: torch.Tensor, per_entry: int) -> tuple[int, int, int]:
    count, n, k = values.shape
    depth_of(k * per_entry)
    return count, n, k * per_entry


def _rows(values: torch.Tensor, paired: bool) -> torch.Tensor:
    if paired:
        values = torch.stack(values.chunk(2, dim=1), dim=2).flatten(1, 2)
    padding = -values.shape[1] % ROWS_DIVIDE
    return F.pad(values, (0, 0, 0, padding)) if padding else values.contiguous()


def _columns(scales: torch.Tensor, paired: bool) -> torch.Tensor:
    return _rows(scales, paired).transpose(1, 2).contiguous()
