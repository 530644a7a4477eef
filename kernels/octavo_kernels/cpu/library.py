"""The compiled kernels that this CPU can run, loaded once per process.

torch is imported first on purpose: its OpenMP runtime and ours are the same object then (both ask for libgomp.so.1),
so that there is one pool of threads and nobody spins against the other.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch

from octavo_kernels.cpu.build import (
    PREBUILT,
    BuildError,
    Variant,
    cache_folder,
    compile_variant,
    file_name,
    is_whole,
    variants,
)
from octavo_kernels.device import cpu_flags
from octavo_kernels.errors import KernelInputError

FORCE = "OCTAVO_CPU_KERNELS"
"""Environment variable that names a variant to use instead of the best one: for tests and for comparing."""


@dataclass(frozen=True)
class _Function:
    """A C function and which of its arguments are pointers."""

    call: Callable[..., int | None]
    pointers: tuple[int, ...]


@dataclass(frozen=True)
class Library:
    """One variant, loaded. C functions take pointers and int64 sizes and never fail: whatever could go wrong is refused
    before the call."""

    variant: Variant
    path: Path
    functions: ctypes.CDLL
    _known: dict[str, _Function] = field(default_factory=dict, repr=False, compare=False)

    def call(self, name: str, *arguments: torch.Tensor | int | float | None) -> None:
        """Call `name` with tensors as pointers (None as NULL), integers as int64_t, floats as float, and the number of
        threads that torch would use as the last int64_t. The kinds of the first call hold for all that follow.

        Raises KernelInputError for a tensor that is not in the CPU's memory.
        """
        self._enter(name, arguments, None)

    def ask(self, name: str, *arguments: torch.Tensor | int | float | None) -> int:
        """`call` of a function that returns an int64_t."""
        answer = self._enter(name, arguments, ctypes.c_int64)
        assert answer is not None
        return answer

    def _enter(
        self, name: str, arguments: tuple[torch.Tensor | int | float | None, ...], returns: type[ctypes.c_int64] | None
    ) -> int | None:
        function = self._known.get(name)
        if function is None:
            function = self._known[name] = self._function(name, arguments, returns)
        values: list[object] = [*arguments, torch.get_num_threads()]
        for index in function.pointers:
            tensor = values[index]
            if tensor is not None:
                values[index] = _address(cast(torch.Tensor, tensor))
        return function.call(*values)

    def _function(
        self, name: str, arguments: tuple[torch.Tensor | int | float | None, ...], returns: type[ctypes.c_int64] | None
    ) -> _Function:
        function, types = getattr(self.functions, name), [_c_type(argument) for argument in arguments]
        function.restype, function.argtypes = returns, [*types, ctypes.c_int64]
        return _Function(function, tuple(index for index, c_type in enumerate(types) if c_type is ctypes.c_void_p))


def _address(tensor: torch.Tensor) -> int:
    if not tensor.is_cpu:
        raise KernelInputError(f"a tensor of shape {list(tensor.shape)} is on {tensor.device}, needed the CPU")
    return tensor.data_ptr()


def _c_type(value: torch.Tensor | int | float | None) -> type[ctypes.c_void_p | ctypes.c_int64 | ctypes.c_float]:
    if value is None or isinstance(value, torch.Tensor):
        return ctypes.c_void_p
    return ctypes.c_float if isinstance(value, float) else ctypes.c_int64


def usable(flags: frozenset[str]) -> tuple[Variant, ...]:
    """Variants that a CPU with these /proc/cpuinfo flags can run, best first."""
    return tuple(variant for variant in variants() if variant.needs <= flags)


@functools.cache
def load(name: str | None = None) -> Library:
    """The named variant, else the one named by OCTAVO_CPU_KERNELS, else the best that this CPU can run.

    Raises:
        BuildError: it is neither prebuilt nor can it be built here, or there is no such variant for this CPU.
    """
    name = name or os.environ.get(FORCE) or None
    candidates = usable(cpu_flags())
    found = next((variant for variant in candidates if name in (None, variant.name)), None)
    if found is None:
        known = ", ".join(variant.name for variant in candidates)
        raise BuildError(f"there are no {name!r} kernels for this CPU (from {FORCE}?); it can run {known}")
    path = PREBUILT / file_name(found)
    if not is_whole(path):
        path = compile_variant(found, cache_folder())
    return Library(found, path, ctypes.CDLL(str(path)))


@functools.cache
def why_unavailable() -> str | None:
    """What speaks against every CPU kernel on this machine, or None."""
    try:
        load()
    except (BuildError, OSError) as error:
        return str(error)
    return None
