"""What launchers ask of a tensor besides dtype and shape: its place, and which generation that is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from octavo_kernels.triton.aot_case import Architecture

INTERPRETED: Architecture = 80
"""The interpreter stands for the oldest generation: it takes every path that is not special to a newer one."""


def architecture_of(tensor: torch.Tensor) -> Architecture:
    """Compute capability of the device that holds `tensor`, as one number; on a CPU the interpreter's."""
    if tensor.device.type != "cuda":
        return INTERPRETED
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return major * 10 + minor


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def on_device_of_tensors(launcher: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A launcher that launches on the device of its first tensor, which need not be the current one.

    Triton launches on the current device, where pointers into another one's memory fault. On a CPU this does nothing.
    """

    @functools.wraps(launcher)
    def launch(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        first = next(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]  # torch has no types there
            return launcher(*args, **kwargs)

    return launch
