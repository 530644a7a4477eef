"""What launchers ask of a tensor besides dtype and shape: its place, and which generation that is."""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError
from octavo_kernels.triton.aot_case import Architecture

INTERPRETED: Architecture = 80
"""The interpreter stands for the oldest generation: it takes every path that is not special to a newer one."""


def architecture_of(tensor: torch.Tensor) -> Architecture:
    """Compute capability of the device that holds `tensor`, as one number; on a CPU the interpreter's."""
    if tensor.device.type != "cuda":
        return INTERPRETED
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return major * 10 + minor


def require_contiguous(**tensors: torch.Tensor) -> None:
    """Raise KernelInputError, naming it, for a tensor whose elements do not lie one behind the other."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise KernelInputError(f"{name} is not contiguous: shape {list(tensor.shape)}, strides {tensor.stride()}")
