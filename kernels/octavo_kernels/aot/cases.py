"""The cases of the package's kernels, and the hash of everything that one of them is compiled from."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import octavo_kernels.triton as kernels
from octavo_kernels.triton.aot_case import AotCase, Architecture

COMPILER = Path(__file__).with_name("compile.py")


def kernel_modules() -> tuple[str, ...]:
    """Every module of `octavo_kernels.triton`, by name; nothing is imported."""
    return tuple(sorted(f"{kernels.__name__}.{module.name}" for module in pkgutil.iter_modules(kernels.__path__)))


def load_cases(modules: Iterable[str]) -> dict[str, AotCase]:
    """AOT_CASES of these modules by name, modules in order.

    Raises:
        ValueError: two cases have the same name, which names them in tables and caches.
    """
    cases: dict[str, AotCase] = {}
    for module in modules:
        for case in getattr(importlib.import_module(module), "AOT_CASES", ()):
            if cases.setdefault(case.name, case) is not case:
                raise ValueError(f"two ahead-of-time cases are called {case.name}")
    return cases


def fingerprint(case: AotCase, architecture: Architecture, triton_version: str) -> str:
    """Hash of what is asked and of the sources that answer (`sources_of`); launchers are not among them."""
    asked = (
        sorted(case.signature.items()),
        sorted((name, repr(value)) for name, value in case.constants.items()),
        (case.num_warps, case.num_stages, sorted(case.unaligned)),
        (architecture, triton_version),
        sorted(sources_of(case.kernel).items()),
        _text(COMPILER),
    )
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:24]


def sources_of(kernel: object) -> dict[str, str]:
    """By qualified name: source of a kernel and of every kernel function that it calls, and the globals they read.

    A module that they reach into is there as a whole, unless it belongs to Triton or to Python.
    """
    found: dict[str, str] = {}
    _collect(kernel, found)
    return found


def _collect(kernel: Any, found: dict[str, str]) -> None:
    function: Callable[..., object] | None = getattr(kernel, "fn", None)
    if function is None:
        found[type(kernel).__qualname__] = ""
        return
    name = f"{function.__module__}.{function.__qualname__}"
    if name in found:
        return
    found[name] = _source(function)
    for used in sorted(set(_names(function.__code__))):
        if used not in function.__globals__:
            continue
        value = function.__globals__[used]
        if hasattr(value, "fn") and hasattr(value, "arg_names"):
            _collect(value, found)
        elif isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] != "triton" and value.__file__:
                found[value.__name__] = _text(Path(value.__file__))
        else:
            found[f"{function.__module__}.{used}"] = repr(value)


@functools.cache
def _source(function: Callable[..., object]) -> str:
    return inspect.getsource(function)


@functools.cache
def _text(path: Path) -> str:
    return path.read_text()


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
