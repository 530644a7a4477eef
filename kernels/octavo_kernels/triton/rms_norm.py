# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""RMSNorm in Triton: one program per row, the row held in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors

WIDEST = 1 << 15
"""Elements of a row that fit the registers of one program."""


@triton.jit
def normalise_row(x, weight, out, width, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.sum(value * value, 0) / width
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    result = value * (1.0 / tl.sqrt_rn(mean_square + epsilon)) * scale
    tl.store(out + row * width + column, result.to(out.dtype.element_ty), mask=inside)


@on_device_of_tensors
def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`x / sqrt(mean(x**2) + epsilon) * weight` along the last dimension, computed in float32.

    x [..., H] float32 or bfloat16, weight [H] float32 or bfloat16; result as x. H at most 32768.
    """
    require_dtype("x", x, torch.float32, torch.bfloat16)
    require_dtype("weight", weight, torch.float32, torch.bfloat16)
    require_shape("weight", weight, x.shape[-1])
    require_contiguous(x=x, weight=weight)
    width = x.shape[-1]
    if width > WIDEST:
        raise KernelInputError(f"x has rows of {width}, needed at most {WIDEST}")
    out = torch.empty_like(x)
    if out.numel():
        block = triton.next_power_of_2(width)
        normalise_row[(x.numel() // width,)](x, weight, out, width, epsilon, BLOCK=block, num_warps=warps_for(block))
    return out


def warps_for(block: int) -> int:
    """About 32 elements per thread, one warp at least and eight at most."""
    return max(1, min(8, block // 1024))


AOT_CASES: tuple[AotCase, ...] = tuple(
    AotCase(
        name=f"rms_norm/{width}",
        kernel=normalise_row,
        signature={"x": "*bf16", "weight": "*bf16", "out": "*bf16", "width": "i32", "epsilon": "fp32"},
        constants={"BLOCK": triton.next_power_of_2(width)},
        num_warps=warps_for(triton.next_power_of_2(width)),
        max_registers=192,
    )
    for width in (7168,)
)
