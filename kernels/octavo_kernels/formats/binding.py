"""The row binding: a 64-bit sum that ties a block-table row to its request, page by page and in order.

A request's binding is the sum (modulo 2**64, read as a signed integer) of `mix(nonce, logical, page, tag)` over every
page it holds. The allocator keeps it on the host; the integrity check recomputes it from the buffer that attention
reads. A pair or a whole row taken from another request changes the nonce part, a permutation of the request's own
pages changes the (logical, page) parts, so either changes the sum, but for a chance of 2**-64.

`mix` is two rounds of the splitmix64 finaliser, a bijection on 64-bit words (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014; constants of Stafford's variant 13). For a fixed (nonce, logical) it is
therefore injective in (page, tag), and the other way round.
"""

from __future__ import annotations

import torch

_MASK_32 = (1 << 32) - 1
_MASK_64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLY_1 = 0xBF58476D1CE4E5B9
MULTIPLY_2 = 0x94D049BB133111EB


def _signed(word: int) -> int:
    """The int64 with the same bits as the low 64 bits of `word`."""
    word &= _MASK_64
    return word - (1 << 64) if word >> 63 else word


def _finalise(word: int) -> int:
    word = ((word ^ (word >> 30)) * MULTIPLY_1) & _MASK_64
    word = ((word ^ (word >> 27)) * MULTIPLY_2) & _MASK_64
    return word ^ (word >> 31)


def mix(nonce: int, logical: int, page: int, tag: int) -> int:
    """One page's term of a binding, as a signed 64-bit integer; of each argument the low 32 bits count."""
    request = ((nonce & _MASK_32) << 32) | (logical & _MASK_32)
    place = ((page & _MASK_32) << 32) | (tag & _MASK_32)
    return _signed(_finalise(_finalise((request + GOLDEN) & _MASK_64) ^ place))


def add(binding: int, term: int) -> int:
    """`binding + term` with the wrap-around of int64, as the device adds."""
    return _signed(binding + term)


def subtract(binding: int, term: int) -> int:
    """`binding - term` with the wrap-around of int64: takes back what `add` added."""
    return _signed(binding - term)


def _shift_right(words: torch.Tensor, bits: int) -> torch.Tensor:
    # int64 has only the arithmetic shift; the mask drops the copies of the sign bit.
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _finalise_tensor(words: torch.Tensor) -> torch.Tensor:
    words = (words ^ _shift_right(words, 30)) * _signed(MULTIPLY_1)
    words = (words ^ _shift_right(words, 27)) * _signed(MULTIPLY_2)
    return words ^ _shift_right(words, 31)


def mix_tensor(nonce: torch.Tensor, logical: torch.Tensor, page: torch.Tensor, tag: torch.Tensor) -> torch.Tensor:
    """`mix` of integer tensors of one shape or broadcastable, as int64; equal bit for bit to the integer version."""
    request = ((nonce.long() & _MASK_32) << 32) | (logical.long() & _MASK_32)
    place = ((page.long() & _MASK_32) << 32) | (tag.long() & _MASK_32)
    return _finalise_tensor(_finalise_tensor(request + _signed(GOLDEN)) ^ place)
