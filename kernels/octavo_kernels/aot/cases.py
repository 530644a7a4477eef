"""The cases of the package's kernels, and the hash of everything that one of them is compiled from."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path

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
    """Hash of kernel source, with all modules of the same package that its module imports, and of what is asked."""
    asked = (
        getattr(case.kernel, "__name__", type(case.kernel).__name__),
        sorted(case.signature.items()),
        sorted((name, repr(value)) for name, value in case.constants.items()),
        (case.num_warps, case.num_stages, sorted(case.unaligned)),
        (architecture, triton_version),
    )
    return hashlib.sha256(repr((asked, _digest(module_of(case)))).encode()).hexdigest()[:24]


def module_of(case: AotCase) -> str:
    """Name of the module that defines the kernel; the case may be elsewhere."""
    return str(getattr(case.kernel, "__module__", None) or getattr(case.kernel, "fn").__module__)  # noqa: B009


@functools.cache
def _digest(module: str) -> str:
    seen = {__name__: COMPILER}
    _walk(module, module.rpartition(".")[0], seen)
    state = hashlib.sha256()
    for name in sorted(seen):
        state.update(name.encode() + b"\0" + seen[name].read_bytes())
    return state.hexdigest()


def _walk(module: str, package: str, seen: dict[str, Path]) -> None:
    if module in seen:
        return
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a name in a module, not a module
        return
    if spec is None or spec.origin is None:
        return
    seen[module] = Path(spec.origin)
    for imported in _imports(seen[module]):
        if imported.startswith(package + "."):
            _walk(imported, package, seen)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            # `from package import module` names the module only as an alias.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
