# ruff: noqa: N803, N806, SIM108
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Rounds activations to what a product multiplies: e4m3 with one float32 scale for every 128 of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.e4m3 import encode_e4m3

RUN = 128
"""Neighbours that share a scale."""

RUNS_AT_ONCE = 8


@triton.jit
def quantise_runs(x, values, scales, k, RUN: tl.constexpr, RUNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    run = tl.program_id(1) * RUNS + tl.arange(0, RUNS)
    column = run[:, None] * RUN + tl.arange(0, RUN)[None, :]
    x_run = tl.load(x + row * k + column, mask=column < k, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x_run), 1)
    # Not a number anywhere makes the scale not a number: max alone would leave it out.
    largest = tl.where(tl.sum((x_run != x_run).to(tl.int32), 1) > 0, float("nan"), largest)
    scale = tl.where(largest == 0.0, 1.0, largest / 448.0)
    tl.store(values + row * k + column, encode_e4m3(x_run / scale[:, None]), mask=column < k)
    tl.store(scales + row * tl.cdiv(k, RUN) + run, scale, mask=run * RUN < k)


def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [T, K], float32 or bfloat16, as (e4m3 [T, K], scales [T, ceil(K/128)] float32)."""
    rows, k = x.shape
    runs = triton.cdiv(k, RUN)
    values = torch.empty((rows, k), dtype=torch.uint8, device=x.device)
    scales = torch.empty((rows, runs), dtype=torch.float32, device=x.device)
    if rows:
        quantise_runs[(rows, triton.cdiv(runs, RUNS_AT_ONCE))](x, values, scales, k, RUN=RUN, RUNS=RUNS_AT_ONCE)
    return values.view(torch.float8_e4m3fn), scales


AOT_CASES: tuple[AotCase, ...] = (
    AotCase(
        name="experts/quantise_activations/fp8",
        kernel=quantise_runs,
        signature={"x": "*bf16", "values": "*u8", "scales": "*fp32", "k": "i32"},
        constants={"RUN": RUN, "RUNS": RUNS_AT_ONCE},
        max_registers=96,
    ),
)
