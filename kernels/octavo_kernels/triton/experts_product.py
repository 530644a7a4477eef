# ruff: noqa: N803, SIM108
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The inner loop of every product with stored weights: a tile of weight rows times a tile of tokens.

Weights are the left operand (`experts_tiles.py` says why). Every step starts from packed weights in memory; what
differs between formats is how a tile of them becomes an operand.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.triton.e4m3 import decode_e4m3
from octavo_kernels.triton.int4 import int4_tile
from octavo_kernels.triton.nvfp4 import nvfp4_tile


@triton.jit
def product(
    x,
    x_scales,
    values,
    scales,
    zeros,
    expert,
    rows,
    tokens,
    n,
    k,
    out_rows,
    start,
    stop,
    ARITHMETIC: tl.constexpr,
    PAIRED: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """float32 [BN, BM]: weights of `rows` [BN] times `x` of `tokens` [BM] over inputs start to stop, which BK divides.

    x [*, k] bfloat16, or e4m3 with x_scales [*, ceil(k/128)] float32, or NVFP4 with x_scales [*, k/16] e4m3; `rows`
    below n, `tokens` and `expert` int64. Of the n stored rows the first `out_rows` are real. PAIRED: rows 2i and 2i + 1
    are gate and up row i, so that FP8 blocks are found where the checkpoint has them.
    """
    out = tl.zeros([BN, BM], tl.float32)
    depth = tl.arange(0, BK)
    blocks = tl.cdiv(k, 128)
    last_block = tl.cdiv(out_rows, 128) - 1
    if PAIRED:
        block_rows = ((rows % 2) * (out_rows // 2) + rows // 2) // 128
    else:
        block_rows = rows // 128
    block_rows = expert * (last_block + 1) + tl.minimum(block_rows, last_block)
    for k0 in range(start, stop, BK):
        if ARITHMETIC == "nvfp4":
            byte = (k0 // 2 + tl.arange(0, BK // 2))[None, :]
            block = (k0 // 16 + tl.arange(0, BK // 16))[None, :]
            right = tl.trans(tl.load(x + tokens[:, None] * (k // 2) + byte))
            right_scale = tl.load(x_scales + tokens[:, None] * (k // 16) + block)
            left = tl.load(values + (expert * n + rows)[:, None] * (k // 2) + byte)
            left_scale = tl.load(scales + (expert * n + rows)[:, None] * (k // 16) + block)
            out = tl.dot_scaled(left, left_scale, "e2m1", right, right_scale, "e2m1", out)
        else:
            right = tl.trans(tl.load(x + tokens[:, None] * k + (k0 + depth)[None, :]))
        if ARITHMETIC == "int4":
            left = int4_tile(values, scales, zeros, expert, rows, k0, n, k, BN, BK, GROUP, HAS_ZEROS)
            out = tl.dot(left, right, out)
        elif ARITHMETIC == "nvfp4_as_bf16":
            left = nvfp4_tile(values, scales, expert, rows, k0, n, k, BN, BK)
            out = tl.dot(left, right, out)
        elif ARITHMETIC == "bf16":
            left = tl.load(values + (expert * n + rows)[:, None] * k + (k0 + depth)[None, :])
            out = tl.dot(left, right, out)
        elif ARITHMETIC != "nvfp4":
            left = tl.load(values + (expert * n + rows)[:, None] * k + (k0 + depth)[None, :])
            scale = tl.load(scales + block_rows * blocks + k0 // 128)[:, None]
            if ARITHMETIC == "fp8":
                scale = scale * tl.load(x_scales + tokens * blocks + k0 // 128)[None, :]
            else:
                left = decode_e4m3(left, False)
            # The accumulator of one step is added in float32 outside the tensor core: promotion every 128 of K.
            out += tl.dot(left, right) * scale
    return out
