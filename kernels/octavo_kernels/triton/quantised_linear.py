"""Linear layers over INT4, FP8 block and NVFP4 weights.

The arithmetic is that of the experts: INT4 is W4A16; FP8 is W8A8 from compute capability 8.9 on; NVFP4 is W4A4 on 10.0,
10.3, 12.0 and 12.1 where the weight has an input scale; everything else is weight-only in bfloat16. From
`DEQUANTISE_FROM` rows on, a weight that is multiplied in bfloat16 is first dequantised, into scratch of its own size in
bfloat16, and multiplied by cuBLAS.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo_kernels.errors import require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.linear import QuantisedWeight
from octavo_kernels.formats.nvfp4 import Nvfp4Weight
from octavo_kernels.operations import LinearKernel
from octavo_kernels.triton.aot_case import Architecture
from octavo_kernels.triton.architecture import architecture_of, on_device_of_tensors
from octavo_kernels.triton.experts_activations import to_fp8, to_nvfp4
from octavo_kernels.triton.experts_dequantise import dequantise
from octavo_kernels.triton.experts_tiles import UNPACKED, Arithmetic, tile_for
from octavo_kernels.triton.experts_weights import StoredMatrix, store_matrix
from octavo_kernels.triton.linear import split_product

DEQUANTISE_FROM = 256
"""Rows from which an extra pass over the weight costs less than unpacking it for every tile of rows."""


class TritonQuantisedLinear(LinearKernel[StoredMatrix]):
    """INT4, FP8 block and NVFP4 weights."""

    def __init__(self, architecture: Architecture | None = None, *, dequantise_from: int = DEQUANTISE_FROM) -> None:
        """`architecture` None: that of the weight's device."""
        self._architecture = architecture
        self._dequantise_from = dequantise_from

    def prepare(self, canonical: QuantisedWeight) -> StoredMatrix:
        """Pad the rows and transpose the scales; raises KernelInputError for sizes that do not divide."""
        return store_matrix(_stacked(canonical), self._architecture or architecture_of(canonical.scales))

    @on_device_of_tensors
    def apply(self, x: torch.Tensor, prepared: StoredMatrix) -> torch.Tensor:
        """`x @ weight.T`: x [T, K] float32 or bfloat16, contiguous; result [T, N] in x's dtype."""
        _, n, k = prepared.shape
        require_dtype("x", x, torch.float32, torch.bfloat16)
        require_shape("x", x, None, k)
        require_contiguous(x=x)
        rows = x.shape[0]
        if not rows:
            return x.new_empty((0, n))
        if prepared.arithmetic in UNPACKED and rows >= self._dequantise_from:
            return F.linear(x.to(torch.bfloat16), _dequantised(prepared, x.device)).to(x.dtype)
        tile = tile_for(prepared.arithmetic, rows, k)
        if prepared.arithmetic is Arithmetic.FP8:
            return split_product(*to_fp8(x), prepared, tile, x.dtype)
        if prepared.arithmetic is Arithmetic.NVFP4 and prepared.input_scales is not None:
            ids = torch.zeros((rows, 1), dtype=torch.int64, device=x.device)
            return split_product(*to_nvfp4(x, ids, prepared.input_scales, 1), prepared, tile, x.dtype)
        return split_product(x.to(torch.bfloat16), None, prepared, tile, x.dtype)


def _dequantised(weight: StoredMatrix, device: torch.device) -> torch.Tensor:
    _, n, k = weight.shape
    scratch = torch.empty(weight.values.shape[1] * k, dtype=torch.bfloat16, device=device)
    used = torch.ones(1, dtype=torch.int32, device=device)
    return dequantise(weight, used, scratch, 0, 1, paired=False).values[0, :n]


def _stacked(weight: QuantisedWeight) -> QuantisedWeight:
    """The weight as a stack of one."""
    match weight:
        case Int4Weight():
            require_shape("weight.packed", weight.packed, None, None)
            zeros = None if weight.zeros is None else weight.zeros[None]
            return Int4Weight(weight.packed[None], weight.scales[None], weight.group_size, zeros)
        case Fp8BlockWeight():
            require_shape("weight.values", weight.values, None, None)
            return Fp8BlockWeight(weight.values[None], weight.scales[None])
        case Nvfp4Weight():
            require_shape("weight.packed", weight.packed, None, None)
            scale = None if weight.input_scale is None else weight.input_scale[None]
            return Nvfp4Weight(weight.packed[None], weight.scales[None], weight.global_scale[None], scale)
