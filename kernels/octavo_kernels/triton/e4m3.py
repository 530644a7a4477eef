# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""FP8 e4m3fn to bfloat16 and back on any generation, bit for bit what `formats/fp8.py` does.

Before compute capability 8.9 Triton knows no FP8 at all, so pages are bytes to every kernel and are widened and rounded
by integer operations. Where the hardware converts, reading may use its instruction (`NATIVE`), which is exact as well;
writing never does: Triton rounds twice on 8.9, by way of float16.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Moves a bfloat16 made of e4m3's own exponent field, whose bias is 7, to a bias of 127.
_REBIAS = tl.constexpr(2.0**120)
_NAN_CODE = tl.constexpr(0x7F)
_LARGEST = tl.constexpr(0x43E00000)
_SMALLEST_NORMAL = tl.constexpr(0x3C800000)
_INFINITY = tl.constexpr(0x7F800000)
_ULP_IS_SMALLEST = tl.constexpr(16384.0)
_BITS_OF_ULP_IS_SMALLEST = tl.constexpr(0x46800000)


@triton.jit
def decode_e4m3(codes, NATIVE: tl.constexpr):
    """Bytes of e4m3fn to bfloat16, exact, subnormals and NaN included."""
    if NATIVE:
        values = codes.to(tl.float8e4nv, bitcast=True).to(tl.bfloat16)
    else:
        wide = codes.to(tl.uint16)
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 4)
        rebiased = bits.to(tl.bfloat16, bitcast=True).to(tl.float32) * _REBIAS
        values = tl.where((wide & 0x7F) == _NAN_CODE, float("nan"), rebiased).to(tl.bfloat16)
    return values


@triton.jit
def encode_e4m3(values):
    """Float32 to bytes of e4m3fn: to nearest even, saturating at +-448 (infinity too), NaN to 0x7f with its sign."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    sign = (bits >> 24) & 0x80
    finite = tl.minimum(magnitude, _LARGEST)
    # Half of what is cut off, one less where that leaves an odd code: the carry runs into the exponent as it should.
    normal = ((finite + 0x7FFFF + ((finite >> 20) & 1)) >> 20) - (120 << 3)
    # Adding 2**14 lets the adder itself round to multiples of 2**-9, the smallest subnormal.
    added = finite.to(tl.float32, bitcast=True) + _ULP_IS_SMALLEST
    subnormal = added.to(tl.int32, bitcast=True) - _BITS_OF_ULP_IS_SMALLEST
    code = tl.where(finite < _SMALLEST_NORMAL, subnormal, normal)
    code = tl.where(magnitude > _INFINITY, _NAN_CODE, code)
    return (code | sign).to(tl.uint8)
