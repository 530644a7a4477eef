"""Holding: what one request holds of the KV pool. Nonces: the names under which requests write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo_kernels.formats.binding import add, mix

_U32 = 1 << 32
_NO_NONCE = frozenset({0, _U32 - 1})
"""WRITER_NULL and WRITER_SHARED as u32."""


@dataclass
class Holding:
    """What one request holds: pairs in logical order and their running binding.

    `binding` is the int64 sum (wrapping) of mix(nonce, logical index, page, tag) over all pairs.
    """

    nonce: int
    """u32 writer nonce, unique among all requests of this process; never 0 or 2**32 - 1."""
    pages: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    binding: int = 0
    cached_tokens: int = 0
    """Leading tokens that were in the cache at the start: from the prefix cache, or from the fork's parent."""
    shared: int = 0
    """Leading pages that are read-only."""
    suspect: bool = False
    """Whether something that it holds was computed without a clean verdict: none of its pages become shareable."""

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(page, tag) in logical order."""
        return zip(self.pages, self.tags, strict=True)

    def append(self, page: int, tag: int) -> None:
        """Hold one more pair, the next in logical order."""
        self.binding = add(self.binding, mix(self.nonce, len(self.pages), page, tag))
        self.pages.append(page)
        self.tags.append(tag)

    def clear(self) -> None:
        """Hold nothing."""
        self.pages.clear()
        self.tags.clear()
        self.binding = self.cached_tokens = self.shared = 0


class Nonces:
    """Writer nonces: u32 values that do not repeat within 2**32 requests, none of them WRITER_NULL or WRITER_SHARED.

    Counting in steps of an odd constant visits every u32 once; consecutive nonces differ in many bits.
    """

    _STRIDE = 0x9E3779B1

    def __init__(self, seed: int) -> None:
        self._next = seed % _U32

    def take(self) -> int:
        """The next nonce."""
        while True:
            self._next = (self._next + self._STRIDE) % _U32
            if self._next not in _NO_NONCE:
                return self._next
