"""Sigmoid and SiLU whose bits do not depend on where an element lies.

torch.sigmoid and F.silu compute the last elements of a tensor, those that fill no vector, by another exp than the
rest, so a row would change with its batch. torch.exp does not.
"""

from __future__ import annotations

import torch


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """`1 / (1 + exp(-x))`, element by element, float32."""
    return 1.0 / (1.0 + torch.exp(-x))


def silu(x: torch.Tensor) -> torch.Tensor:
    """`x / (1 + exp(-x))`, element by element, float32; NaN for minus infinity, as F.silu says as well."""
    return x / (1.0 + torch.exp(-x))
