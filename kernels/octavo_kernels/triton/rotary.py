# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Rotary embedding: the angles by torch, once per step, the rotation in Triton, in every layer for queries and keys.

(cos and sin of large arguments keep an array on the stack of each thread when Triton 3.6 compiles them; once per step,
five launches of torch cost nothing.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors

HEADS_AT_ONCE = 8


@triton.jit
def rotate_heads(
    x, cosine, sine, out, heads, dim, half, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    place = tl.arange(0, BLOCK)
    turned = place < 2 * half
    if INTERLEAVED:
        second = (place % 2) == 1
        partner = tl.where(second, place - 1, place + 1)
        angle = place // 2
    else:
        second = place >= half
        partner = tl.where(second, place - half, place + half)
        angle = tl.where(second, place - half, place)
    row = (token * heads + head)[:, None] * dim
    inside = (head < heads)[:, None] & (place < dim)[None, :]
    pair = (head < heads)[:, None] & turned[None, :]
    value = tl.load(x + row + place[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(x + row + partner[None, :], mask=pair, other=0.0).to(tl.float32)
    cos = tl.load(cosine + token * half + angle, mask=turned, other=1.0)[None, :]
    sin = tl.load(sine + token * half + angle, mask=turned, other=0.0)[None, :]
    signed = tl.where(second[None, :], other, -other)
    result = tl.where(turned[None, :], value * cos + signed * sin, value)
    tl.store(out + row + place[None, :], result.to(out.dtype.element_ty), mask=inside)


def angles(
    positions: torch.Tensor, frequencies: torch.Tensor, amplitude: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of positions [T] int64 with frequencies [R/2] float32, times `amplitude`: [T, R/2] float32."""
    require_dtype("positions", positions, torch.int64)
    require_dtype("frequencies", frequencies, torch.float32)
    require_shape("positions", positions, None)
    require_shape("frequencies", frequencies, None)
    require_contiguous(positions=positions, frequencies=frequencies)
    # A float32 product, as the reference forms it.
    phase = positions.float()[:, None] * frequencies[None, :]
    return phase.cos() * amplitude, phase.sin() * amplitude


@on_device_of_tensors
def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Rotate the first R elements of each head by `angles` and pass the rest on; a new tensor of the same shape.

    x [T, heads, D] float32 or bfloat16, cosine and sine [T, R/2] float32 with R <= D. Pairs are (i, i + R/2), or
    (2i, 2i + 1) if `interleaved`.
    """
    require_dtype("x", x, torch.float32, torch.bfloat16)
    require_dtype("cosine", cosine, torch.float32)
    require_dtype("sine", sine, torch.float32)
    require_shape("x", x, None, None, None)
    require_shape("cosine", cosine, x.shape[0], None)
    require_shape("sine", sine, *cosine.shape)
    require_contiguous(x=x, cosine=cosine, sine=sine)
    tokens, heads, dim = x.shape
    half = cosine.shape[1]
    if 2 * half > dim:
        raise KernelInputError(f"cosine is for {2 * half} elements of a head, x has {dim}")
    out = torch.empty_like(x)
    if out.numel():
        grid = (tokens, triton.cdiv(heads, HEADS_AT_ONCE))
        block = triton.next_power_of_2(dim)
        rotate_heads[grid](
            x, cosine, sine, out, heads, dim, half, INTERLEAVED=interleaved, HEADS=HEADS_AT_ONCE, BLOCK=block
        )
    return out


AOT_CASES: tuple[AotCase, ...] = (
    *(
        AotCase(
            name=f"rotary/rotate/{name}/d{dim}",
            kernel=rotate_heads,
            signature={
                "x": "*bf16",
                "cosine": "*fp32",
                "sine": "*fp32",
                "out": "*bf16",
                "heads": "i32",
                "dim": "i32",
                "half": "i32",
            },
            constants={"INTERLEAVED": interleaved, "HEADS": HEADS_AT_ONCE, "BLOCK": dim},
            max_registers=96,
            unaligned=frozenset({"heads"}),
        )
        for name, interleaved, dim in (("half", False, 128),)
    ),
)
