"""Linear layer over a plain BF16 or float32 weight, in C: float32 sums in one order, whatever the number of rows."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.cpu.packing import lanes
from octavo_kernels.errors import require_contiguous, require_dtype, require_shape

FEW, TALL, UNIT = 4, 6, 32
"""As in `src/linear.c`: rows that are multiplied where they lie; rows of a tile; outputs of a thread's unit."""


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`reference.linear.linear`: x [T, K] float32, weight [N, K] bfloat16 or float32, both contiguous; [T, N] float32.

    Raises KernelInputError for other shapes, dtypes or strides.
    """
    require_dtype("x", x, torch.float32)
    require_dtype("weight", weight, torch.bfloat16, torch.float32)
    require_shape("weight", weight, None, None)
    require_shape("x", x, None, weight.shape[1])
    require_contiguous(x=x, weight=weight)
    rows, in_features = x.shape
    out = torch.empty((rows, weight.shape[0]), dtype=torch.float32)
    if not out.numel():
        return out
    copy = weights = None
    if rows > FEW:
        padded = -(-in_features // lanes()) * lanes()
        copy = torch.empty((-(-rows // TALL) * TALL, padded))
        weights = torch.empty((torch.get_num_threads(), UNIT, padded))
    half = weight.dtype == torch.bfloat16
    library.load().call("linear", x, weight, out, copy, weights, half, rows, in_features, weight.shape[0])
    return out
