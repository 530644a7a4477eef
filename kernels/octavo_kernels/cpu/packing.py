"""Weights as the C tiles read them (`src/linear_packed.h`): pairs of blocks of `lanes` outputs, 32-bit words along K.

Packed once while loading; whatever an implementation needs in other places (zero padding of odd sizes, NaN in an FP8
code) is settled here, so that the inner loops need not ask.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
import torch.nn.functional as F

from octavo_kernels.cpu import library
from octavo_kernels.errors import KernelInputError, require_shape
from octavo_kernels.formats.fp8_block import BLOCK as FP8_BLOCK
from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import ZERO, Int4Weight
from octavo_kernels.formats.linear import QuantisedWeight
from octavo_kernels.formats.nvfp4 import BLOCK as NVFP4_BLOCK
from octavo_kernels.formats.nvfp4 import Nvfp4Weight


class Format(IntEnum):
    """Numbers of `enum format` in C."""

    BF16 = 0
    INT4 = 1
    INT4_ZEROS = 2
    FP8 = 3
    NVFP4 = 4


WORD_BYTES = 4


@dataclass(frozen=True)
class PackedWeight:
    """A weight [N, K], or a stack of them, in the layout of one instruction set."""

    format: Format
    words: torch.Tensor
    """uint8 [S, N / pair, K / per_word, 2, lanes, 4], N and K padded."""
    scales: torch.Tensor | None
    """[S, N / pair, K / group, 2, lanes]: bfloat16 (INT4), float32 (FP8), uint8 holding e4m3 (NVFP4).

    FP8 has one for each output and 128 inputs, which is 3.1 % of the values' bytes, where the canonical blocks take
    0.02 %: it also says of each output that its group holds a NaN."""
    zeros: torch.Tensor | None
    """uint8, like scales."""
    global_scale: torch.Tensor | None
    """float32 [S], NVFP4 only."""
    group: int
    in_features: int
    """K, padded to whole groups."""

    @property
    def pairs(self) -> int:
        """N / pair."""
        return self.words.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, padding included."""
        tensors = (self.words, self.scales, self.zeros, self.global_scale)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """As the C functions take them."""
        return self.words, self.scales, self.zeros, self.global_scale


@functools.cache
def lanes() -> int:
    """Outputs of one block: floats in a register of the loaded instruction set."""
    out = torch.zeros(1, dtype=torch.int64)
    library.load().call("linear_lanes", out)
    return int(out)


def pack(weight: torch.Tensor | QuantisedWeight, *, gate_up: bool = False) -> PackedWeight:
    """Pack a stack [S, N, K]. With `gate_up`, rows n and N / 2 + n share a pair, each half padded on its own.

    One weight of the stack at a time, so that packing takes no more memory than the result and one weight. Raises
    KernelInputError for a group size that is no multiple of 8.
    """
    stack = _stack_size(weight)
    first = _pack_one(weight, 0, gate_up)
    if stack == 1:
        return first
    into = [None if part is None else part.new_empty((stack, *part.shape[1:])) for part in first.tensors]
    for index in range(stack):
        one = first if index == 0 else _pack_one(weight, index, gate_up)
        for target, part in zip(into, one.tensors, strict=True):
            if target is not None and part is not None:
                target[index] = part[0]
    words, scales, zeros, global_scale = into
    assert words is not None
    return replace(first, words=words, scales=scales, zeros=zeros, global_scale=global_scale)


def _stack_size(weight: torch.Tensor | QuantisedWeight) -> int:
    values = weight.values if isinstance(weight, Fp8BlockWeight) else weight
    values = values if isinstance(values, torch.Tensor) else values.packed
    require_shape("weight", values, None, None, None)
    if not values.shape[0] or not values.shape[2]:
        raise KernelInputError(f"weight has shape {list(values.shape)}, needed one of a stack and one input at least")
    return values.shape[0]


def _pack_one(weight: torch.Tensor | QuantisedWeight, index: int, gate_up: bool) -> PackedWeight:
    """Weight `index` as a stack of one."""
    one = slice(index, index + 1)
    match weight:
        case Int4Weight():
            zeros = None if weight.zeros is None else weight.zeros[one]
            return _pack_int4(Int4Weight(weight.packed[one], weight.scales[one], weight.group_size, zeros), gate_up)
        case Fp8BlockWeight():
            return _pack_fp8(Fp8BlockWeight(weight.values[one], weight.scales[one]), gate_up)
        case Nvfp4Weight():
            return _pack_nvfp4(Nvfp4Weight(weight.packed[one], weight.scales[one], weight.global_scale[one]), gate_up)
        case torch.Tensor():
            padded = F.pad(weight[one], (0, weight.shape[-1] % 2))
            words = _words(padded.contiguous().view(torch.uint8), gate_up)
            return PackedWeight(Format.BF16, words, None, None, None, padded.shape[-1], padded.shape[-1])


def _pack_int4(weight: Int4Weight, gate_up: bool) -> PackedWeight:
    if weight.group_size % 8:
        raise KernelInputError(f"group size {weight.group_size} is no multiple of 8")
    words = _words(_spread_nibbles(weight.packed), gate_up, ZERO * 0x11)
    scales = _per_group(weight.scales, gate_up)
    zeros = None if weight.zeros is None else _per_group(weight.zeros, gate_up)
    name = Format.INT4 if zeros is None else Format.INT4_ZEROS
    return PackedWeight(name, words, scales, zeros, None, weight.group_size, weight.in_features)


def _pack_fp8(weight: Fp8BlockWeight, gate_up: bool) -> PackedWeight:
    short = -weight.in_features % FP8_BLOCK
    codes = F.pad(weight.values.view(torch.uint8), (0, short))
    # The decoder knows no NaN: where a group holds one, its scale says so.
    spoilt = _split_last((codes & 0x7F) == 0x7F, FP8_BLOCK).any(dim=-1)
    rows = weight.scales.repeat_interleave(FP8_BLOCK, dim=-2)[..., : weight.out_features, :]
    scales = torch.where(spoilt, torch.nan, rows)
    in_features = weight.in_features + short
    return PackedWeight(
        Format.FP8, _words(codes, gate_up), _per_group(scales, gate_up), None, None, FP8_BLOCK, in_features
    )


def _pack_nvfp4(weight: Nvfp4Weight, gate_up: bool) -> PackedWeight:
    words = _words(_spread_nibbles(weight.packed), gate_up)
    scales = _per_group(weight.scales.view(torch.uint8), gate_up)
    global_scale = weight.global_scale.contiguous().clone()
    return PackedWeight(Format.NVFP4, words, scales, None, global_scale, NVFP4_BLOCK, weight.in_features)


def _spread_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Of each 8 values: byte j holds values j and 4 + j, instead of 2j and 2j + 1."""
    four = _split_last(packed, 4)
    low, high = four & 0xF, four >> 4
    near = torch.stack((low[..., 0], high[..., 0], low[..., 1], high[..., 1]), dim=-1)
    far = torch.stack((low[..., 2], high[..., 2], low[..., 3], high[..., 3]), dim=-1)
    return (near | (far << 4)).flatten(-2)


def _words(codes: torch.Tensor, gate_up: bool, fill: int = 0) -> torch.Tensor:
    """[S, N, bytes of K] to [S, N / pair, K / per_word, 2, lanes, 4]."""
    blocks = _split_last(_blocks(codes, gate_up, fill), WORD_BYTES)
    return blocks.permute(0, 1, 4, 2, 3, 5).contiguous()


def _per_group(values: torch.Tensor, gate_up: bool) -> torch.Tensor:
    """[S, N, K / group] to [S, N / pair, K / group, 2, lanes]."""
    return _blocks(values, gate_up, 0).permute(0, 1, 4, 2, 3).contiguous()


def _blocks(values: torch.Tensor, gate_up: bool, fill: int) -> torch.Tensor:
    """[S, N, X] to [S, pairs, 2, lanes, X]."""
    stack, n, last = values.shape
    width = lanes()
    if gate_up:
        halves = F.pad(values.reshape(stack, 2, n // 2, last), (0, 0, 0, -(n // 2) % width), value=fill)
        return halves.reshape(stack, 2, -1, width, last).transpose(1, 2)
    return F.pad(values, (0, 0, 0, -n % (2 * width)), value=fill).reshape(stack, -1, 2, width, last)


def _split_last(values: torch.Tensor, size: int) -> torch.Tensor:
    """[..., X] as [..., X / size, size]."""
    return values.reshape(*values.shape[:-1], values.shape[-1] // size, size)
