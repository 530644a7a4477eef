"""Tests written for the CPU, with every tensor of theirs on another device instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


class OnDevice(TorchFunctionMode):
    """Inside it, tensors that are made without saying where are made on `device`.

    Unlike `torch.device` as a context it also takes numbers drawn with a CPU generator there: the same numbers, so a
    test sees on a GPU what it saw in the interpreter.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._makers = _device_constructors()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called by torch for every function of its own."""
        given = dict(kwargs or {})
        if function in self._makers and given.get("device") is None:
            if given.get("generator") is not None:
                return function(*args, **given).to(self.device)
            given["device"] = self.device
        return function(*args, **given)
