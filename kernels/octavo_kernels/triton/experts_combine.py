# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Adds the parts of a token in routing order, which makes the sum the same every time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.triton.aot_case import AotCase

BLOCK = 1024


@triton.jit
def combine_parts(parts, ids, out, experts, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    total = tl.zeros([BLOCK], tl.float32)
    for place in range(TOP_K):
        slot = token * TOP_K + place
        expert = tl.load(ids + slot)
        # A part whose expert does not exist was never written.
        exists = (expert >= 0) & (expert < experts)
        total += tl.load(parts + slot * hidden + column, mask=inside & exists, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), mask=inside)


def combine(parts: torch.Tensor, ids: torch.Tensor, experts: int, out: torch.Tensor) -> None:
    """`out[t] = sum over places of parts[t, place]`: parts [T * k, H] float32, ids [T, k] int64, out [T, H]."""
    tokens, hidden = out.shape
    grid = (tokens, triton.cdiv(hidden, BLOCK))
    combine_parts[grid](parts, ids, out, experts, hidden, TOP_K=ids.shape[1], BLOCK=BLOCK)


AOT_CASES: tuple[AotCase, ...] = tuple(
    AotCase(
        name=f"experts/combine/{name}",
        kernel=combine_parts,
        signature={"parts": "*fp32", "ids": "*i64", "out": out, "experts": "i32", "hidden": "i32"},
        constants={"TOP_K": 8, "BLOCK": BLOCK},
        max_registers=64,
    )
    for name, out in (("bfloat16", "*bf16"),)
)
