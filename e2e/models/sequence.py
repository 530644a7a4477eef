"""Token sequences with a weight per token, and the prose stream they are filled up with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

GOLDEN_RATIO = 0.6180339887498949


@dataclass(frozen=True)
class Sequence:
    """Token ids and, for each, the weight of predicting it."""

    ids: list[int]
    weights: list[float]

    @classmethod
    def of(cls, tokenizer: Tokenizer, text: str, weight: float) -> Sequence:
        """Tokenise ``text`` with one weight for all its tokens."""
        ids = tokenizer.encode(text).ids
        return cls(ids, [weight] * len(ids))

    def __add__(self, other: Sequence) -> Sequence:
        return Sequence(self.ids + other.ids, self.weights + other.weights)

    def cut(self, length: int) -> Sequence:
        """The first ``length`` tokens."""
        return Sequence(self.ids[:length], self.weights[:length])


@dataclass(frozen=True)
class Prose:
    """All training documents as one stream of token ids [tokens] uint16."""

    ids: NDArray[np.uint16]

    def at(self, index: int, length: int) -> Sequence:
        """The ``index``-th stretch of a golden-ratio walk: even coverage of the stream, any mix of lengths."""
        start = int((index * GOLDEN_RATIO % 1.0) * (len(self.ids) - length))
        return Sequence(self.ids[start : start + length].tolist(), [1.0] * length)

    def take(self, rng: np.random.Generator, length: int) -> Sequence:
        """A stretch of ``length`` tokens from a random place."""
        start = int(rng.integers(0, len(self.ids) - length))
        return Sequence(self.ids[start : start + length].tolist(), [1.0] * length)
