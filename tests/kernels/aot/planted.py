# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""Kernels with one fault each, and a healthy one: what the matrix must turn red for, and what it must not."""

from __future__ import annotations

import os

import triton
import triton.language as tl

from octavo_kernels.triton.aot_case import AotCase, Architecture

HOPPER: Architecture = 90
ADA: Architecture = 89
AMPERE: Architecture = 80


@triton.jit
def product(a, b, out, k, m: tl.constexpr, n: tl.constexpr, step: tl.constexpr):
    rows = tl.arange(0, m)[:, None]
    columns = tl.arange(0, n)[None, :]
    depth = tl.arange(0, step)
    total = tl.zeros([m, n], tl.float32)
    for start in range(0, k, step):
        x = tl.load(a + rows * k + start + depth[None, :])
        y = tl.load(b + (start + depth)[:, None] * n + columns)
        total = tl.dot(x, y, total)
    tl.store(out + rows * n + columns, total)


class _EndsItsProcess:
    """A kernel on which the compiler dies instead of saying no."""

    __module__ = __name__

    @property
    def arg_names(self) -> list[str]:
        os._exit(7)


def _product(name: str, *, only: Architecture, m: int, n: int, k: int, **more: object) -> AotCase:
    kind = str(more.pop("kind", "*bf16"))
    return AotCase(
        name=name,
        kernel=product,
        signature={"a": kind, "b": kind, "out": "*fp32", "k": "i32"},
        constants={"m": m, "n": n, "step": k},
        why_not=lambda architecture: None if architecture == only else f"planted for {only}",
        **more,  # type: ignore[arg-type]
    )


AOT_CASES: tuple[AotCase, ...] = (
    _product("healthy", only=HOPPER, m=64, n=64, k=64, mma=lambda architecture: "wgmma"),
    _product("spills", only=AMPERE, m=128, n=128, k=32, num_warps=1),
    _product("too many registers", only=ADA, m=16, n=16, k=16, max_registers=10),
    _product("too much shared memory", only=ADA, m=128, n=128, k=128, num_warps=8),
    _product("wrong instruction", only=HOPPER, m=16, n=16, k=32, mma=lambda architecture: "wgmma"),
    _product("no such type", only=AMPERE, m=32, n=32, k=32, kind="*fp8e4nv"),
    AotCase(
        name="crash",
        kernel=_EndsItsProcess(),
        signature={},
        constants={},
        why_not=lambda architecture: None if architecture == ADA else f"planted for {ADA}",
    ),
)
