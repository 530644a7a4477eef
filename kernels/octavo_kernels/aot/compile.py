"""One case compiled for one architecture in this process, and what the result uses. Needs no GPU and no driver."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo_kernels.aot.results import Measured
from octavo_kernels.triton.aot_case import AotCase, Architecture

TOOL_SECONDS = 60
MATRIX_INSTRUCTION = re.compile(r"(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)[\w.:]*")
RESOURCE = re.compile(r"(REG|STACK):(\d+)")
TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)
ERROR_LINES = 4


def compile_case(case: AotCase, architecture: Architecture) -> Measured:
    """Compile to a cubin and read its resources; a compiler's refusal is a result, not an exception."""
    start = time.monotonic()
    try:
        compiled = triton.compile(
            _source(case),
            target=GPUTarget("cuda", architecture, 32),
            options={"num_warps": case.num_warps, "num_stages": case.num_stages},
        )
    except Exception as error:  # the compiler raises whatever it likes, RuntimeError and SystemError included
        return Measured(error=_said(error), seconds=time.monotonic() - start)
    used = _resources(compiled.asm["cubin"])
    ptx: str = compiled.asm["ptx"]
    target = TARGET.search(ptx)
    return Measured(
        registers=used["REG"],
        stack_bytes=used["STACK"],
        shared_bytes=compiled.metadata.shared,
        tensor_columns=getattr(compiled.metadata, "tmem_size", None) or 0,
        warps=compiled.metadata.num_warps,
        target=target[1] if target else "",
        matrix=tuple(sorted(set(MATRIX_INSTRUCTION.findall(ptx)))),
        seconds=time.monotonic() - start,
    )


def _source(case: AotCase) -> ASTSource:
    kernel: Any = case.kernel
    names = kernel.arg_names
    unknown = (set(case.signature) | set(case.constants) | case.unaligned) - set(names)
    missing = set(names) - set(case.signature) - set(case.constants)
    if unknown or missing:
        raise ValueError(f"{case.name}: no such arguments: {sorted(unknown)}; arguments not said: {sorted(missing)}")
    signature = {name: "constexpr" if name in case.constants else case.signature[name] for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, parameter in enumerate(kernel.params)
        if _aligned(case, parameter.name, signature[parameter.name], parameter.do_not_specialize)
    }
    return ASTSource(fn=kernel, signature=signature, constexprs=dict(case.constants), attrs=aligned)


def _aligned(case: AotCase, name: str, kind: str, do_not_specialize: bool) -> bool:
    if name in case.unaligned or kind == "constexpr":
        return False
    return kind.startswith("*") or (kind[0] in "iu" and not do_not_specialize)


def _resources(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=True,
        )
    return {name: int(value) for name, value in RESOURCE.findall(done.stdout)}


def _said(error: BaseException) -> str:
    # The cause is what the pass said; the outermost exception often only that a pass failed.
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        lines = [line.strip() for line in str(seen).strip().splitlines() if line.strip()]
        parts.append(" | ".join([type(seen).__name__, *lines[-ERROR_LINES:]]))
        seen = seen.__cause__
    return " <- ".join(parts)[:1000]
