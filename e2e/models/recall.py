"""Key-value recall: facts such as "The code of amber is 4821." hidden in prose, asked for again later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from .recipe import TURN_END, TURN_START
from .sequence import Prose, Sequence

CODE_DIGITS = 4
FACT_WEIGHT = 0.05
"""Codes are random: nothing can predict them when they are first stated, so their loss is noise."""
ANSWER_WEIGHT = 4.0


@dataclass(frozen=True)
class Fact:
    """A word and the code stated for it."""

    word: str
    code: str

    @property
    def statement(self) -> str:
        """The sentence that states the fact and that answers the question."""
        return f"The code of {self.word} is {self.code}."

    @property
    def question(self) -> str:
        """The sentence that asks for it."""
        return f"What is the code of {self.word}?"


def draw_facts(rng: np.random.Generator, words: list[str], count: int) -> list[Fact]:
    """``count`` facts with distinct words and independent random codes."""
    chosen = rng.choice(len(words), size=count, replace=False)
    codes = rng.integers(0, 10**CODE_DIGITS, size=count)
    return [Fact(words[int(i)], f"{int(code):0{CODE_DIGITS}d}") for i, code in zip(chosen, codes, strict=True)]


def drill_sequence(rng: np.random.Generator, tokenizer: Tokenizer, words: list[str], length: int) -> Sequence:
    """A few facts stated and asked over and over, then a few others, exactly ``length`` tokens.

    Spread over prose the same facts teach nothing for millions of tokens: the signal drowns. Dense like this,
    looking back is learnt within a few hundred thousand, and then also works across prose.
    """
    sequence = Sequence([], [])
    while len(sequence.ids) < length:
        facts = draw_facts(rng, words, min(int(rng.geometric(0.4)), 6))
        for fact in facts:
            sequence += _stated(tokenizer, fact)
        for number in rng.integers(0, len(facts), size=3 * len(facts)).tolist():
            sequence += (
                _asked(tokenizer, facts[number]) if rng.random() < 0.5 else _answer(tokenizer, facts[number], ".\n")
            )
    return sequence.cut(length)


def echo_sequence(rng: np.random.Generator, prose: Prose, length: int) -> Sequence:
    """Snippets of prose said two to four times over: the plainest reason to look back for what came next."""
    sequence = Sequence([], [])
    while len(sequence.ids) < length:
        snippet = prose.take(rng, int(rng.integers(12, 64)))
        for _ in range(int(rng.integers(2, 5))):
            sequence += snippet
    return sequence.cut(length)


def plain_sequence(
    rng: np.random.Generator, tokenizer: Tokenizer, words: list[str], prose: Prose, length: int
) -> Sequence:
    """Facts and questions at random places of running prose, exactly ``length`` tokens."""
    facts = draw_facts(rng, words, _fact_count(rng, length))
    stated = [float(rng.uniform(0.0, 0.6)) for _ in facts]
    events = [(place, fact, False) for place, fact in zip(stated, facts, strict=True)]
    for _ in range(int(rng.integers(3, 8))):
        number = int(rng.integers(len(facts)))
        events.append((float(rng.uniform(stated[number] + 0.02, 1.0)), facts[number], True))
    events.sort(key=lambda event: event[0])
    parts = [_asked(tokenizer, fact) if asks else _stated(tokenizer, fact) for _, fact, asks in events]
    filler = max(0, length - sum(len(part.ids) for part in parts))
    sequence, used = Sequence([], []), 0
    for (place, _, _), part in zip(events, parts, strict=True):
        take = max(0, int(place * filler) - used)
        sequence += prose.take(rng, take)
        used += take
        sequence += part
    return (sequence + prose.take(rng, max(0, length - len(sequence.ids)))).cut(length)


def chat_sequence(
    rng: np.random.Generator, tokenizer: Tokenizer, words: list[str], prose: Prose, length: int
) -> Sequence:
    """One chat: a first turn of prose with facts in it, then questions about them, at most ``length`` tokens."""
    facts = draw_facts(rng, words, _fact_count(rng, length))
    turns = [facts[int(i)] for i in rng.integers(0, len(facts), size=int(rng.integers(1, 5)))]
    head = Sequence.of(tokenizer, f"{TURN_START}user\n", FACT_WEIGHT)
    stated = [_stated(tokenizer, fact) for fact in facts]
    asked = [_chat_turn(tokenizer, fact, first=i == 0) for i, fact in enumerate(turns)]
    filler = max(0, length - len(head.ids) - sum(len(part.ids) for part in stated + asked))
    cuts = sorted(int(cut) for cut in rng.integers(0, filler + 1, size=len(facts)))
    sequence, used = head, 0
    for cut, part in zip(cuts, stated, strict=True):
        sequence += prose.take(rng, cut - used)
        sequence += part
        used = cut
    sequence += prose.take(rng, filler - used)
    for part in asked:
        sequence += part
    return sequence.cut(length)


def _fact_count(rng: np.random.Generator, length: int) -> int:
    """Often one, where looking back for any code is enough; sometimes many, where it has to be the right one."""
    return min(int(rng.geometric(0.45 if length <= 256 else 0.25)), 6 if length <= 512 else 12)


def _stated(tokenizer: Tokenizer, fact: Fact) -> Sequence:
    return Sequence.of(tokenizer, f"\n{fact.statement}\n", FACT_WEIGHT)


def _answer(tokenizer: Tokenizer, fact: Fact, ending: str) -> Sequence:
    lead = Sequence.of(tokenizer, f"The code of {fact.word} is ", 0.5)
    return lead + Sequence.of(tokenizer, fact.code, ANSWER_WEIGHT) + Sequence.of(tokenizer, ending, 0.5)


def _asked(tokenizer: Tokenizer, fact: Fact) -> Sequence:
    return Sequence.of(tokenizer, f"\n{fact.question} ", FACT_WEIGHT) + _answer(tokenizer, fact, ".\n")


def _chat_turn(tokenizer: Tokenizer, fact: Fact, *, first: bool) -> Sequence:
    opening = "\n" if first else f"{TURN_START}user\n"
    question = f"{opening}{fact.question}{TURN_END}\n{TURN_START}assistant\n"
    return Sequence.of(tokenizer, question, FACT_WEIGHT) + _answer(tokenizer, fact, f".{TURN_END}\n")
