"""Hatch's hook: a wheel carries the CPU kernels of every instruction set; an editable install needs no compiler."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

IN_WHEEL = "octavo_kernels/cpu/prebuilt"


class CompiledKernels(BuildHookInterface[Any]):
    """Compiles into the build folder and tags the wheel for this platform; any Python 3 takes it, since ctypes loads
    what it carries."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a build; `version` is "editable" for one that stays in its working tree."""
        if self.target_name != "wheel" or version == "editable":
            return
        build = _load(Path(self.root) / "kernels/octavo_kernels/cpu/build.py")
        folder = self._scratch
        for variant in build.variants():
            self.app.display_info(f"compiling the {variant.name} kernels")
            library = build.compile_variant(variant, folder)
            build_data["force_include"][str(library)] = f"{IN_WHEEL}/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After a build: only the wheel stays."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def _scratch(self) -> Path:
        return Path(self.directory) / "cpu-kernels"


def _load(path: Path) -> ModuleType:
    """A module by its file: the package is not installed where its wheel is built."""
    spec = importlib.util.spec_from_file_location("octavo_cpu_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
