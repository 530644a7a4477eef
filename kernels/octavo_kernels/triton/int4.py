# ruff: noqa: N803, N806, SIM108
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""INT4 weights in a Triton kernel: a tile is loaded packed, once, and unpacked in registers.

A nibble q becomes the float32 `128 + q` by putting its four bits into the mantissa of 128.0, without an integer to
float conversion. One fused multiply-add with the group's scale s then gives `(128 + q) * s - (128 + zero) * s`; both
products have at most 16 significant bits, so the result is `(q - zero) * s` rounded once, to bfloat16.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def int4_tile(
    values,
    scales,
    zeros,
    expert,
    rows,
    k0,
    n,
    k,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):
    """Weights [BN, BK] bfloat16 of `rows` [BN] and inputs k0 to k0 + BK.

    values u8 [E, n, k/2], low nibble = even k; scales bf16 and zeros u8 [E, k/GROUP, n]. GROUP divides BK, or BK GROUP.
    """
    byte = k0 // 2 + tl.arange(0, BK // 2)
    packed = tl.load(values + (expert * n + rows)[:, None] * (k // 2) + byte[None, :]).to(tl.int32)
    low = (((packed & 0xF) << 16) | 0x43000000).to(tl.float32, bitcast=True)
    high = (((packed & 0xF0) << 12) | 0x43000000).to(tl.float32, bitcast=True)
    nibbles = tl.interleave(low, high)
    SPAN: tl.constexpr = GROUP if GROUP < BK else BK
    GROUPS: tl.constexpr = BK // SPAN
    group = expert * (k // GROUP) + k0 // GROUP + tl.arange(0, GROUPS)
    place = rows[:, None] + group[None, :] * n
    scale = tl.load(scales + place).to(tl.float32)
    if HAS_ZEROS:
        offset = scale * (tl.load(zeros + place).to(tl.float32) + 128.0)
    else:
        offset = scale * 136.0
    if GROUPS == 1:
        return (nibbles * scale - offset).to(tl.bfloat16)
    grouped = tl.reshape(nibbles, [BN, GROUPS, SPAN])
    return tl.reshape(grouped * scale[:, :, None] - offset[:, :, None], [BN, BK]).to(tl.bfloat16)
