"""What a kernel says before it launches on inputs that it cannot take."""

from __future__ import annotations

import torch


class KernelInputError(ValueError):
    """An input has the wrong shape, dtype or layout; the message names the argument, what it is and what is needed."""


def require_dtype(name: str, tensor: torch.Tensor, *allowed: torch.dtype) -> None:
    """Raise KernelInputError unless `tensor` has one of the `allowed` dtypes."""
    dtype = tensor.dtype
    if dtype not in allowed:
        needed = " or ".join(map(str, allowed))
        raise KernelInputError(f"{name} is {dtype}, needed {needed}")


def require_shape(name: str, tensor: torch.Tensor, *shape: int | None) -> None:
    """Raise KernelInputError unless `tensor` has this shape; None stands for any size."""
    # Every operation asks this of every tensor in every step: a loop, which takes a third of what all(...) does.
    have = tensor.shape
    if len(have) == len(shape):
        for want, size in zip(shape, have, strict=True):
            if want is not None and want != size:
                break
        else:
            return
    needed = ", ".join("any" if want is None else str(want) for want in shape)
    raise KernelInputError(f"{name} has shape {list(have)}, needed [{needed}]")


def require_contiguous(**tensors: torch.Tensor) -> None:
    """Raise KernelInputError for the first tensor, named by its keyword, that is not contiguous."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise KernelInputError(f"{name} is not contiguous: shape {list(tensor.shape)}, strides {tensor.stride()}")
