"""RMSNorm in C."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import require_contiguous, require_dtype, require_shape


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """See `reference.rms_norm.rms_norm`; x contiguous."""
    require_dtype("x", x, torch.float32)
    require_shape("weight", weight, x.shape[-1])
    require_contiguous(x=x)
    out = torch.empty_like(x)
    if x.numel():
        count = x.shape[-1]
        library.load().call("rms_norm", x, weight.float().contiguous(), out, float(epsilon), x.numel() // count, count)
    return out
