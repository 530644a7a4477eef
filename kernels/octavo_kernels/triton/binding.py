# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The row binding's terms on the device, equal bit for bit to `formats/binding.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_kernels.formats.binding import GOLDEN, MULTIPLY_1, MULTIPLY_2

_MASK_32 = tl.constexpr((1 << 32) - 1)
# As int64: each has its highest bit set.
_GOLDEN = tl.constexpr(GOLDEN - (1 << 64))
_MULTIPLY_1 = tl.constexpr(MULTIPLY_1 - (1 << 64))
_MULTIPLY_2 = tl.constexpr(MULTIPLY_2 - (1 << 64))


@triton.jit
def finalise(words):
    """The splitmix64 finaliser of int64 words; their shift is arithmetic, so each mask drops the copies of the sign."""
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * _MULTIPLY_1
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * _MULTIPLY_2
    return words ^ ((words >> 31) & ((1 << 33) - 1))


@triton.jit
def mix(nonce, logical, page, tag):
    """One page's term of a binding, as int64; of each argument the low 32 bits count."""
    request = (nonce.to(tl.int64) << 32) | (logical.to(tl.int64) & _MASK_32)
    place = (page.to(tl.int64) << 32) | (tag.to(tl.int64) & _MASK_32)
    return finalise(finalise(request + _GOLDEN) ^ place)
