# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Rounds activations to what a product multiplies, with the same bits as the reference.

FP8: e4m3 with one float32 scale for every 128 of a row (`formats/fp8_block.py`). NVFP4: e2m1 with one e4m3 scale for
every 16 (`formats/nvfp4.py`), once for each slot, because every expert has an input scale of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.e4m3 import decode_e4m3, encode_e4m3
from octavo_kernels.triton.nvfp4 import encode_e2m1

RUN = 128
"""Neighbours that share a scale."""

RUNS_AT_ONCE = 8

BLOCKS_AT_ONCE = 64
"""NVFP4 blocks of one program."""

LARGEST = tl.constexpr(3.4028234663852886e38)
SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def quantise_runs(x, values, scales, k, RUN: tl.constexpr, RUNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    run = tl.program_id(1) * RUNS + tl.arange(0, RUNS)
    column = run[:, None] * RUN + tl.arange(0, RUN)[None, :]
    x_run = tl.load(x + row * k + column, mask=column < k, other=0.0).to(tl.float32)
    # max leaves NaN out, as the format wants it; infinity counts as the largest number.
    largest = tl.minimum(tl.max(tl.where(x_run == x_run, tl.abs(x_run), 0.0), 1), LARGEST)
    scale = tl.div_rn(largest, tl.full([RUNS], 448.0, tl.float32))
    scale = tl.where(scale < SMALLEST_NORMAL, 1.0, scale)
    ratio = tl.div_rn(x_run, tl.broadcast_to(scale[:, None], [RUNS, RUN]))
    tl.store(values + row * k + column, encode_e4m3(ratio), mask=column < k)
    tl.store(scales + row * tl.cdiv(k, RUN) + run, scale, mask=run * RUN < k)


@triton.jit
def quantise_slots(x, ids, input_scales, codes, scales, k, experts, SLOTS_PER_ROW: tl.constexpr, BLOCKS: tl.constexpr):
    slot = tl.program_id(0).to(tl.int64)
    expert = tl.load(ids + slot)
    if (expert < 0) | (expert >= experts):
        return
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = column < k
    found = tl.load(x + (slot // SLOTS_PER_ROW) * k + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.div_rn(found, tl.broadcast_to(tl.load(input_scales + expert), [BLOCKS, 16]))
    largest = tl.max(tl.where(y == y, tl.abs(y), 0.0), 1)
    largest = tl.where(tl.sum((y != y).to(tl.int32), 1) > 0, float("nan"), largest)
    scale = encode_e4m3(tl.div_rn(largest, tl.full([BLOCKS], 6.0, tl.float32)))
    step = decode_e4m3(scale, False).to(tl.float32)
    flat = (step == 0.0)[:, None]
    code = encode_e2m1(
        tl.div_rn(tl.where(flat, 0.0, y), tl.where(flat, 1.0, tl.broadcast_to(step[:, None], [BLOCKS, 16])))
    )
    low, high = tl.split(tl.reshape(code, [BLOCKS, 8, 2]))
    byte = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(codes + slot * (k // 2) + byte, (low | (high << 4)).to(tl.uint8), mask=byte < k // 2)
    tl.store(scales + slot * (k // 16) + block, scale, mask=block < k // 16)


def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [T, K], float32 or bfloat16, as (e4m3 [T, K], scales [T, ceil(K/128)] float32)."""
    rows, k = x.shape
    runs = triton.cdiv(k, RUN)
    values = torch.empty((rows, k), dtype=torch.uint8, device=x.device)
    scales = torch.empty((rows, runs), dtype=torch.float32, device=x.device)
    if rows:
        quantise_runs[(rows, triton.cdiv(runs, RUNS_AT_ONCE))](x, values, scales, k, RUN=RUN, RUNS=RUNS_AT_ONCE)
    return values.view(torch.float8_e4m3fn), scales


def to_nvfp4(
    x: torch.Tensor, ids: torch.Tensor, input_scales: torch.Tensor, slots_per_row: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each slot's row of `x` as (codes [S, K/2] uint8, scales [S, K/16] e4m3), with the input scale [E] of its expert.

    Slot s reads row s // slots_per_row. A slot whose expert does not exist is left unset.
    """
    slots, k = ids.numel(), x.shape[1]
    codes = torch.empty((slots, k // 2), dtype=torch.uint8, device=x.device)
    scales = torch.empty((slots, k // 16), dtype=torch.uint8, device=x.device)
    grid = (slots, triton.cdiv(k // 16, BLOCKS_AT_ONCE))
    experts = input_scales.shape[0]
    quantise_slots[grid](
        x, ids, input_scales, codes, scales, k, experts, SLOTS_PER_ROW=slots_per_row, BLOCKS=BLOCKS_AT_ONCE
    )
    return codes, scales.view(torch.float8_e4m3fn)


AOT_CASES: tuple[AotCase, ...] = (
    AotCase(
        name="experts/quantise_activations/fp8",
        kernel=quantise_runs,
        signature={"x": "*bf16", "values": "*u8", "scales": "*fp32", "k": "i32"},
        constants={"RUN": RUN, "RUNS": RUNS_AT_ONCE},
        max_registers=96,
    ),
    AotCase(
        name="experts/quantise_activations/nvfp4",
        kernel=quantise_slots,
        signature={
            "x": "*bf16",
            "ids": "*i64",
            "input_scales": "*fp32",
            "codes": "*u8",
            "scales": "*u8",
            "k": "i32",
            "experts": "i32",
        },
        constants={"SLOTS_PER_ROW": 8, "BLOCKS": BLOCKS_AT_ONCE},
        max_registers=128,
    ),
)
