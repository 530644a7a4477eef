"""Finds where code waits for the device: operations whose result or shape the host can only know by asking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2", "repeat_interleave.Tensor")
"""ATen operations that synchronise; `item`, `tolist`, `bool` and boolean indexing come down to them."""


class WaitedForTheDevice(AssertionError):
    """The operation that waits, by name."""


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


class NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Inside it such an operation raises, on any device, so that launchers can be tested without a GPU too.

    `torch.cuda.set_sync_debug_mode("error")` finds more, and only on a GPU: use both there.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        function: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called by torch for every operation that runs."""
        name = str(function).removeprefix("aten.")
        if name in ASKING or name.split(".")[0] in ASKING:
            raise WaitedForTheDevice(name)
        given = dict(kwargs or {})
        if name.startswith(("index.Tensor", "index_put")) and any(
            _is_mask(index) for index in args[1] if index is not None
        ):
            raise WaitedForTheDevice(f"{name} with a mask")
        leaves = name.startswith("_to_copy") and given.get("device") == torch.device("cpu")
        if leaves and any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
            raise WaitedForTheDevice(f"{name} to the CPU")
        call: Callable[..., Any] = function
        return call(*args, **given)
