"""Linear layer: float32 products of float32 activations with BF16 weights, the same bits in every batch.

A BLAS picks another loop order for few rows than for many, so `x @ W` of one token differs in the last bits between
batches (measured on MKL: below 16 rows each row differs from the result with 16 or more). Here every product has the
same shape: tiles of ROW_TILE rows, the last one padded with zeros. Where a row lies in its tile and what the other
rows hold does not change it (tested). Measured on one Cascade Lake core against one product of all rows: 1.4 to 3
times the time at 512 rows, 1.6 to 2.7 times at 16, and 4 to 8 times for a single row, which MKL does as a
matrix-vector product; a whole step of the tiny model takes at most 1.2 times as long, decode or prefill.

Weights stay BF16 in memory and are promoted per use, which takes another 20 to 50 % at 16 rows; a promoted copy would
be twice the bytes that the operator plans with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from octavo_kernels.errors import require_dtype, require_shape

ROW_TILE = 32
"""Rows of every matrix product."""


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T` in float32: x [T, K] float32, weight [N, K] bfloat16 or float32, result [T, N] float32."""
    require_dtype("x", x, torch.float32)
    require_dtype("weight", weight, torch.bfloat16, torch.float32)
    require_shape("x", x, None, weight.shape[-1])
    return tiled_matmul(x, weight.float().t())


def tiled_matmul(x: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`x @ right` by tiles of ROW_TILE rows: x [T, K], right [K, N], both float32."""
    rows = x.shape[0]
    padded = F.pad(x, (0, 0, 0, -rows % ROW_TILE))
    out = x.new_empty((padded.shape[0], right.shape[1]))
    for start in range(0, padded.shape[0], ROW_TILE):
        torch.mm(padded[start : start + ROW_TILE], right, out=out[start : start + ROW_TILE])
    return out[:rows]
