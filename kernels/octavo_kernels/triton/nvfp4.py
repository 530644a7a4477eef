# ruff: noqa: N803, N806
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""NVFP4 in Triton: rounding to e2m1, and weights for a product in bfloat16, unpacked by hand.

(`tl.dot_scaled` takes bfloat16 beside e2m1 on no version before 3.9, and there without the block-scaled instruction.)
An e2m1 value times its block's e4m3 scale has at most six significant bits, so the bfloat16 tile is exact; the global
scale is left to the accumulator.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.triton.e4m3 import decode_e4m3


@triton.jit
def e2m1_to_float(code):
    """float32 of the low four bits of int32 codes: exponent and mantissa go where float32 has its lowest exponent bits,
    and 2**126 makes up for the other bias, subnormal 0.5 included."""
    bits = ((code & 8) << 28) | ((code & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def encode_e2m1(values):
    """int32 codes of float32 values: to nearest, ties to the even code, saturating at +-6, NaN to +6."""
    size = tl.abs(values)
    # Middles between neighbouring values; from an odd code the middle itself goes up.
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    sign = (values.to(tl.int32, bitcast=True) >> 28) & 8
    return tl.where(values == values, code | sign, 7)


@triton.jit
def nvfp4_tile(values, scales, expert, rows, k0, n, k, BN: tl.constexpr, BK: tl.constexpr):
    """Weights [BN, BK] bfloat16, without their global scale, of `rows` [BN] and inputs k0 to k0 + BK.

    values u8 [E, n, k/2], low nibble = even k; scales u8 (e4m3 bits) [E, k/16, n].
    """
    byte = k0 // 2 + tl.arange(0, BK // 2)
    packed = tl.load(values + (expert * n + rows)[:, None] * (k // 2) + byte[None, :]).to(tl.int32)
    codes = tl.interleave(e2m1_to_float(packed), e2m1_to_float(packed >> 4))
    GROUPS: tl.constexpr = BK // 16
    block = expert * (k // 16) + k0 // 16 + tl.arange(0, GROUPS)
    scale = decode_e4m3(tl.load(scales + rows[:, None] + block[None, :] * n), False).to(tl.float32)
    grouped = tl.reshape(codes, [BN, GROUPS, 16]) * scale[:, :, None]
    return tl.reshape(grouped, [BN, BK]).to(tl.bfloat16)
