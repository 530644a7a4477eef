"""A device that keeps its answers to itself, to see how often a step asks.

Tensors live on torch's meta device: they have shapes and no numbers, so a question to the device has no answer that a
test could mistake for one. Triton's launches are left out; everything that the host does around them is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import pytest
import torch
from torch.overrides import TorchFunctionMode
from triton.runtime.jit import JITFunction

from tests.kernels.triton.no_waiting import NoWaiting, WaitedForTheDevice

DEVICE = torch.device("meta")
CPU = torch.device("cpu")
RESULTS = "copy to the host"


class Waits(NoWaiting):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Lists every wait for the device. One without which the host cannot go on raises."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.after: list[str] = []
        """Operations on the device after the last wait."""

    def __torch_dispatch__(
        self,
        function: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called by torch for every operation that runs."""
        given = dict(kwargs or {})
        with self:  # in inference mode `to`, `item` and others come as they are; what they are made of tells
            parts = function.decompose(*args, **given)
        if parts is not NotImplemented:
            return parts
        name = str(function).removeprefix("aten.")
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if name.startswith("copy_"):
            target, source = tensors[:2]
            waits = not (given.get("non_blocking") or (len(args) > 2 and args[2]))
            if source.device == DEVICE and target.device == CPU:
                self._wait(RESULTS)
                return target
            if source.device == CPU and target.device == DEVICE and waits:
                self._wait(f"upload that waits: {name}")
        if name.startswith("_to_copy"):
            to = given.get("device", tensors[0].device)
            if tensors[0].device == DEVICE and to == CPU:
                raise WaitedForTheDevice(f"{name} to the host")
            if tensors[0].device == CPU and to == DEVICE and not given.get("non_blocking"):
                self._wait(f"upload that waits: {name}")
        if any(tensor.device == DEVICE for tensor in tensors):
            self.after.append(name)
        return super().__torch_dispatch__(function, types, args, given)

    def _wait(self, what: str) -> None:
        self.seen.append(what)
        self.after.clear()


class Uploads(TorchFunctionMode):
    """Finds tensors made on the device from numbers of the host, which torch does not show to a dispatch mode."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called by torch for every function of its own."""
        given = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and given.get("device") not in (None, CPU):
            self._waits.seen.append(f"upload that waits: torch.{function.__name__}")
        return function(*args, **given)


T = TypeVar("T")


def moved(value: T) -> T:
    """A frozen dataclass with all its tensors on the device, those of the dataclasses within it too."""
    return cast(T, _moved(value))


def _moved(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_moved, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: _moved(getattr(value, part.name)) for part in fields(value)})
    return value


@contextmanager
def listed() -> Iterator[Waits]:
    """Waits for the device inside it."""
    with Waits() as waits, Uploads(waits):
        yield waits


def launch_nothing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on Triton's kernels are not run; the names of those that would have been."""
    launched: list[str] = []

    def run(kernel: Any, *_args: object, **_kwargs: object) -> None:
        launched.append(kernel.fn.__name__)

    monkeypatch.setattr(JITFunction, "run", run)
    return launched
