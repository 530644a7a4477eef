"""FP8 to float32 in C, at the memory's speed."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import require_contiguous, require_dtype
from octavo_kernels.formats import fp8


def decode(stored: torch.Tensor) -> torch.Tensor:
    """`formats.fp8.decode`: the exact float32 values of a contiguous float8_e4m3fn tensor, same shape.

    Raises KernelInputError for another dtype or strides.
    """
    require_dtype("stored", stored, fp8.DTYPE)
    require_contiguous(stored=stored)
    out = torch.empty(stored.shape, dtype=torch.float32)
    library.load().call("fp8_to_float", stored, out, stored.numel())
    return out
