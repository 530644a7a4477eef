"""What a kernel says before it launches on inputs that it cannot take."""

from __future__ import annotations

import torch


class KernelInputError(ValueError):
    """An input has the wrong shape, dtype or layout; the message names the argument, what it is and what is needed."""


def require_dtype(name: str, tensor: torch.Tensor, *allowed: torch.dtype) -> None:
    """Raise KernelInputError unless `tensor` has one of the `allowed` dtypes."""
    if tensor.dtype not in allowed:
        needed = " or ".join(str(dtype) for dtype in allowed)
        raise KernelInputError(f"{name} is {tensor.dtype}, needed {needed}")


def require_shape(name: str, tensor: torch.Tensor, *shape: int | None) -> None:
    """Raise KernelInputError unless `tensor` has this shape; None stands for any size."""
    fits = tensor.ndim == len(shape) and all(
        want is None or want == have for want, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        needed = ", ".join("any" if want is None else str(want) for want in shape)
        raise KernelInputError(f"{name} has shape {list(tensor.shape)}, needed [{needed}]")


def require_contiguous(**tensors: torch.Tensor) -> None:
    """Raise KernelInputError for the first tensor, named by its keyword, that is not contiguous."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise KernelInputError(f"{name} is not contiguous: shape {list(tensor.shape)}, strides {tensor.stride()}")
