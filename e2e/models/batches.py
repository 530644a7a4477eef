"""What the model sees at each step: a pure function of its arguments, so that a run can be resumed anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from . import chat, recall
from .chat import Exchange
from .corpus import Document
from .recipe import END_OF_TEXT, Schedule, Shares
from .sequence import Prose, Sequence
from .vocabulary import single_token_words, token_id

CHAT_RECALL_SHARE = 0.4
"""Share of the recall sequences that are chats."""


@dataclass(frozen=True)
class Mixture:
    """The sources a batch is drawn from."""

    tokenizer: Tokenizer
    prose: Prose
    exchanges: list[Exchange]
    words: list[str]

    @classmethod
    def of(cls, tokenizer: Tokenizer, documents: tuple[Document, ...]) -> Mixture:
        """Tokenise ``documents`` once and cut the chat exchanges from them."""
        end = token_id(tokenizer, END_OF_TEXT)
        stream: list[int] = []
        for encoding in tokenizer.encode_batch([d.text for d in documents]):
            stream += encoding.ids
            stream.append(end)
        found = [e for e in chat.exchanges(documents) for _ in range(e.repeats)]
        return cls(tokenizer, Prose(np.array(stream, dtype=np.uint16)), found, single_token_words(tokenizer))

    def sequence(self, rng: np.random.Generator, shares: Shares, index: int, length: int) -> Sequence:
        """One training sequence; ``index`` numbers all sequences of the run."""
        kind = int(np.searchsorted(np.cumsum([shares.drill, shares.recall, shares.echo, shares.chat]), rng.random()))
        match kind:
            case 0:
                return recall.drill_sequence(rng, self.tokenizer, self.words, length)
            case 1:
                draw = recall.chat_sequence if rng.random() < CHAT_RECALL_SHARE else recall.plain_sequence
                return draw(rng, self.tokenizer, self.words, self.prose, length)
            case 2:
                return recall.echo_sequence(rng, self.prose, length)
            case 3:
                return chat.chat_sequence(rng, self.tokenizer, self.exchanges, length)
            case _:
                return self.prose.at(index, length)


@dataclass(frozen=True)
class Batch:
    """``ids`` [rows, length + 1] int64; ``weights`` [rows, length] f32 of predicting ids[:, 1:]."""

    ids: Tensor
    weights: Tensor


def batch_at(mixture: Mixture, schedule: Schedule, step: int, fraction: float, rank: int, world_size: int) -> Batch:
    """The rows of ``rank`` at ``step``, ``fraction`` of the way; all ranks use the same sequence length."""
    phase = schedule.phase_at(fraction)
    lengths, odds = zip(*phase.lengths, strict=True)
    length = int(np.random.default_rng((schedule.seed, step)).choice(lengths, p=odds))
    rows = schedule.tokens_per_step // world_size // length
    rng = np.random.default_rng((schedule.seed, step, rank))
    ids = torch.zeros(rows, length + 1, dtype=torch.int64)
    weights = torch.zeros(rows, length)
    for row in range(rows):
        index = (step * world_size + rank) * (schedule.tokens_per_step // 256) + row
        sequence = mixture.sequence(rng, phase.shares, index, length + 1)
        count = len(sequence.ids)
        ids[row, :count] = torch.tensor(sequence.ids)
        weights[row, : count - 1] = torch.tensor(sequence.weights[1:])
    return Batch(ids, weights)
