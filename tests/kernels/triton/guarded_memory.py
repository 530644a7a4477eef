"""Makes a load or store outside every tensor of the launch an error, where the interpreter would crash or say nothing.

The interpreter follows any address that is not masked off: far ones end the process, near ones read or change whatever
lies there, and a GPU does the same. `install()` compares each unmasked address with the storages of the tensors that
the launch was given. This is the kernels' memory checker; it finds an index off by one even where nothing crashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime import interpreter

Handle = Any


class OutsideEveryTensor(IndexError):
    """A kernel touched memory that none of its arguments owns; the message says how far from the nearest one."""


class Storages:
    """Address ranges of the tensors of the launch in progress."""

    def __init__(self) -> None:
        self.starts: npt.NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self.ends: npt.NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def know(self, arguments: Iterable[object]) -> None:
        """Those of the tensors among `arguments` and nothing else."""
        ranges = set()
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                storage = argument.untyped_storage()
                ranges.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        ordered = sorted(ranges) or [(0, 0)]
        self.starts = np.array([start for start, _ in ordered], dtype=np.uint64)
        self.ends = np.array([end for _, end in ordered], dtype=np.uint64)

    def check(self, what: str, pointers: Handle, mask: npt.NDArray[Any]) -> None:
        """Raise OutsideEveryTensor for the first unmasked address that no tensor holds."""
        addresses, mask = np.broadcast_arrays(pointers.data, mask)
        addresses = addresses[mask.astype(bool)]
        if not addresses.size:
            return
        width = np.uint64(max(1, pointers.get_element_ty().primitive_bitwidth // 8))
        owner = np.searchsorted(self.starts, addresses, side="right").astype(np.int64) - 1
        outside = (owner < 0) | (addresses + width > self.ends[owner])
        if outside.any():
            first = int(addresses[outside][0])
            start, end = int(self.starts[owner[outside][0]]), int(self.ends[owner[outside][0]])
            raise OutsideEveryTensor(
                f"{what} of {int(outside.sum())} elements outside every tensor of the launch; the first is "
                f"{first - end} bytes past the end of one of {end - start} bytes"
            )


def install() -> None:
    """Check every load, store and atomic of this process's interpreter; a second call changes nothing."""
    builder = interpreter.InterpreterBuilder
    if hasattr(builder, "guarded_memory"):
        return
    storages = builder.guarded_memory = Storages()
    launch = interpreter.GridExecutor.__call__

    def guarded_launch(self: Any, *arguments: Any, **options: Any) -> Any:
        storages.know((*arguments, *options.values()))
        return launch(self, *arguments, **options)

    interpreter.GridExecutor.__call__ = guarded_launch
    for name, what, mask_at in (
        ("create_masked_load", "load", 1),
        ("create_masked_store", "store", 2),
        ("create_atomic_rmw", "atomic", 3),
        ("create_atomic_cas", "atomic", None),
    ):
        setattr(builder, name, _guard(getattr(builder, name), storages, what, mask_at))


def _guard(original: Callable[..., Any], storages: Storages, what: str, mask_at: int | None) -> Callable[..., Any]:
    def guarded(self: Any, *arguments: Any, **options: Any) -> Any:
        pointers = arguments[1] if mask_at == 3 else arguments[0]
        mask = np.True_ if mask_at is None else arguments[mask_at].data
        storages.check(what, pointers, np.asarray(mask))
        return original(self, *arguments, **options)

    return guarded
