"""How an entry names its function without importing it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from octavo_kernels.device import Device
from octavo_kernels.registry import Formats, Shapes

WhyNot = Callable[[Device, Formats, Shapes], str | None]


def function(module: str, name: str) -> Callable[[], object]:
    """Loader of `octavo_kernels.<module>.<name>`."""

    def load() -> object:
        return getattr(importlib.import_module(f"octavo_kernels.{module}"), name)

    return load


def instance(module: str, name: str, *arguments: object) -> Callable[[], object]:
    """Loader of an instance of the class `octavo_kernels.<module>.<name>`."""

    def load() -> object:
        return getattr(importlib.import_module(f"octavo_kernels.{module}"), name)(*arguments)

    return load
