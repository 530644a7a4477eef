# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""Small kernels that show what the interpreter computes, and what torch says they should.

`python -m tests.kernels.triton.arithmetic` prints as JSON which of them Triton gets right by itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def cast_kernel(source, target, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(target + i, tl.load(source + i).to(target.dtype.element_ty))


@triton.jit
def arithmetic_kernel(a, b, target, n: tl.constexpr):
    i = tl.arange(0, n)
    x = tl.load(a + i)
    y = tl.load(b + i)
    tl.store(target + i, x + y)
    tl.store(target + n + i, x * y)
    tl.store(target + 2 * n + i, x - y)
    tl.store(target + 3 * n + i, tl.where(x < y, -x, y))


@triton.jit
def dot_kernel(a, b, target, m: tl.constexpr, n: tl.constexpr, k: tl.constexpr, precision: tl.constexpr):
    x = tl.load(a + tl.arange(0, m)[:, None] * k + tl.arange(0, k)[None, :])
    y = tl.load(b + tl.arange(0, k)[:, None] * n + tl.arange(0, n)[None, :])
    product = tl.dot(x, y, input_precision=precision)
    tl.store(target + tl.arange(0, m)[:, None] * n + tl.arange(0, n)[None, :], product)


@triton.jit
def scaled_dot_kernel(
    a, a_scale, b, b_scale, target, m: tl.constexpr, n: tl.constexpr, k: tl.constexpr, block: tl.constexpr
):
    packed = tl.arange(0, k // 2)
    blocks = tl.arange(0, k // block)
    x = tl.load(a + tl.arange(0, m)[:, None] * (k // 2) + packed[None, :])
    y = tl.load(b + tl.arange(0, n)[:, None] * (k // 2) + packed[None, :])
    x_scale = tl.load(a_scale + tl.arange(0, m)[:, None] * (k // block) + blocks[None, :])
    y_scale = tl.load(b_scale + tl.arange(0, n)[:, None] * (k // block) + blocks[None, :])
    product = tl.dot_scaled(x, x_scale, "e2m1", tl.trans(y), y_scale, "e2m1")
    tl.store(target + tl.arange(0, m)[:, None] * n + tl.arange(0, n)[None, :], product)


@triton.jit
def sum_kernel(source, target, n: tl.constexpr):
    tl.store(target, tl.sum(tl.load(source + tl.arange(0, n)), 0))


@triton.jit
def maximum_kernel(source, target, n: tl.constexpr):
    tl.store(target, tl.max(tl.load(source + tl.arange(0, n)), 0))


@triton.jit
def scalar_mask_kernel(source, target, wanted, n: tl.constexpr):
    i = tl.arange(0, n)
    mask = (i < n) & (tl.load(source) == wanted)
    tl.store(target + i, tl.load(source + i, mask=mask, other=0))


@triton.jit
def loop_kernel(source, target):
    total = 0
    for i in range(tl.load(source)):
        total += i
    tl.store(target, total)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _cast(values: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    target = torch.empty(values.numel(), dtype=to)
    cast_kernel[(1,)](values, target, n=values.numel())
    return target


ALL_CODES = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
EDGES = torch.tensor(
    [0.0, -0.0, 2**-9, 2**-10, 3 * 2**-11, 7.97, 447.9, 464.0, 465.0, 1e30, float("inf"), float("nan")]
)


def every_fp8_code_to_float32() -> tuple[torch.Tensor, torch.Tensor]:
    return _cast(ALL_CODES, torch.float32), ALL_CODES.float()


def every_fp8_code_to_bfloat16() -> tuple[torch.Tensor, torch.Tensor]:
    return _cast(ALL_CODES, torch.bfloat16), ALL_CODES.bfloat16()


def float32_to_fp8() -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.cat((_random(116) * 4, _random(116) * 0.01, EDGES, -EDGES))
    return _cast(values, torch.float8_e4m3fn), values.clamp(-448, 448).to(torch.float8_e4m3fn)


def float32_to_bfloat16() -> tuple[torch.Tensor, torch.Tensor]:
    ties = torch.tensor(
        [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, float("inf"), float("nan"), 3.39e38, 1e-40, -0.0]
    )
    values = torch.cat((_random(120), ties))
    return _cast(values, torch.bfloat16), values.bfloat16()


def bfloat16_arithmetic() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = _random(2, 64).bfloat16()
    target = torch.empty(256, dtype=torch.bfloat16)
    arithmetic_kernel[(1,)](a, b, target, n=64)
    return target, torch.cat((a + b, a * b, a - b, torch.where(a < b, -a, b)))


def _dot(kind: torch.dtype, precision: str = "ieee") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = (4 * _random(2, 32 * 32)).view(2, 32, 32).to(kind)
    target = torch.empty(32, 32)
    dot_kernel[(1,)](a, b, target, m=32, n=32, k=32, precision=precision)
    return target, a, b


def dot_of_bfloat16() -> tuple[torch.Tensor, torch.Tensor]:
    target, a, b = _dot(torch.bfloat16)
    return target, a.double() @ b.double()


def dot_of_fp8() -> tuple[torch.Tensor, torch.Tensor]:
    target, a, b = _dot(torch.float8_e4m3fn)
    return target, a.double() @ b.double()


def dot_of_float32_in_tf32() -> tuple[torch.Tensor, torch.Tensor]:
    target, a, b = _dot(torch.float32, "tf32")
    a, b = (((x.view(torch.int32) >> 13) << 13).view(torch.float32).double() for x in (a, b))
    return target, a @ b


def dot_of_float32_as_asked() -> tuple[torch.Tensor, torch.Tensor]:
    target, a, b = _dot(torch.float32, "ieee")
    return target, a.double() @ b.double()


def _scaled_dot(scale: torch.dtype, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (2, 32, 64), generator=generator)
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    if scale == torch.uint8:
        scales = torch.randint(120, 134, (2, 32, 64 // block), generator=generator).to(torch.uint8)
        factors = torch.exp2(scales.double() - 127)
    else:
        scales = torch.rand((2, 32, 64 // block), generator=generator).add(0.1).to(scale)
        factors = scales.double()
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    a, b = torch.cat((table, -table))[codes] * factors.repeat_interleave(block, -1)
    target = torch.empty(32, 32)
    scaled_dot_kernel[(1,)](packed[0], scales[0], packed[1], scales[1], target, m=32, n=32, k=64, block=block)
    return target, a @ b.T


def scaled_dot_of_mxfp4() -> tuple[torch.Tensor, torch.Tensor]:
    return _scaled_dot(torch.uint8, 32)


def scaled_dot_of_nvfp4() -> tuple[torch.Tensor, torch.Tensor]:
    return _scaled_dot(torch.float8_e4m3fn, 16)


def sum_that_wraps_around() -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.full((64,), 2**30 + 7, dtype=torch.int32)
    target = torch.empty(1, dtype=torch.int32)
    sum_kernel[(1,)](values, target, n=64)
    return target, values.sum(dtype=torch.int64).to(torch.int32)[None]


def sum_of_bfloat16() -> tuple[torch.Tensor, torch.Tensor]:
    values, target = _random(64).bfloat16(), torch.empty(1)
    sum_kernel[(1,)](values, target, n=64)
    return target, values.double().sum()[None].bfloat16().float()


def maximum_of_bfloat16() -> tuple[torch.Tensor, torch.Tensor]:
    values, target = -_random(64).abs().bfloat16(), torch.empty(1)
    maximum_kernel[(1,)](values, target, n=64)
    return target, values.float().max()[None]


def mask_from_a_scalar() -> tuple[torch.Tensor, torch.Tensor]:
    values, target = torch.arange(5, 21, dtype=torch.int32), torch.empty(16, dtype=torch.int32)
    scalar_mask_kernel[(1,)](values, target, 5, n=16)
    return target, values


def loop_to_a_loaded_bound() -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.empty(1, dtype=torch.int32)
    loop_kernel[(1,)](torch.tensor([10], dtype=torch.int32), target)
    return target, torch.tensor([45], dtype=torch.int32)


PROBES: tuple[Callable[[], tuple[torch.Tensor, torch.Tensor]], ...] = (
    every_fp8_code_to_float32,
    every_fp8_code_to_bfloat16,
    float32_to_fp8,
    float32_to_bfloat16,
    bfloat16_arithmetic,
    dot_of_bfloat16,
    dot_of_fp8,
    dot_of_float32_in_tf32,
    dot_of_float32_as_asked,
    scaled_dot_of_mxfp4,
    scaled_dot_of_nvfp4,
    sum_that_wraps_around,
    sum_of_bfloat16,
    maximum_of_bfloat16,
    mask_from_a_scalar,
    loop_to_a_loaded_bound,
)


def is_right(probe: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Whether a kernel ran and gave the bits of the specification; float64 ones up to the rounding of float32 sums."""
    try:
        have, want = probe()
    except Exception:
        return False
    if want.dtype == torch.float64:
        return bool(((have - want).abs() <= 4e-6 * want.abs().max()).all())
    if want.is_floating_point():
        have, want = have.float(), want.float()
        # A NaN's payload says nothing, and neither does its sign; that of zero does.
        same = (have.view(torch.int32) == want.view(torch.int32)) | (have.isnan() & want.isnan())
        return bool(same.all())
    return bool((have == want).all())


def main() -> int:
    """Print {name of the probe: whether it is right} for Triton as it comes."""
    rights: dict[str, Any] = {probe.__name__: is_right(probe) for probe in PROBES}
    print(json.dumps(rights))
    return 0


if __name__ == "__main__":
    sys.exit(main())
