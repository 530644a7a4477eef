"""Indices that a C function goes by: refused before the call, in a few microseconds for what a step has of them."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import KernelInputError


def require_within(name: str, indices: torch.Tensor, size: int) -> None:
    """Raise KernelInputError unless each of the contiguous int64 `indices` is one of 0 to size - 1."""
    place = library.load().ask("first_outside", indices, indices.numel(), size)
    if place >= 0:
        raise KernelInputError(f"{name} has {int(indices.view(-1)[place])}, needed 0 to {size - 1}")
