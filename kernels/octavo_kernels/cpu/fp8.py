"""FP8 e4m3fn in bulk: `formats.fp8` at the speed of memory."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import require_contiguous, require_dtype
from octavo_kernels.formats import fp8


def decode(stored: torch.Tensor) -> torch.Tensor:
    """The exact float32 values of a contiguous float8_e4m3fn tensor, same shape."""
    require_dtype("stored", stored, fp8.DTYPE)
    require_contiguous(stored=stored)
    out = torch.empty(stored.shape, dtype=torch.float32)
    if out.numel():
        library.load().call("fp8_to_float", stored, out, out.numel())
    return out


def encode(values: torch.Tensor) -> torch.Tensor:
    """Round a contiguous float32 tensor to float8_e4m3fn, same shape: nearest even, saturating; NaN stays NaN."""
    require_dtype("values", values, torch.float32)
    require_contiguous(values=values)
    out = torch.empty(values.shape, dtype=fp8.DTYPE)
    if out.numel():
        library.load().call("fp8_encode", values, out, out.numel())
    return out
