"""How good the checkpoint is: perplexity on held-out prose, damage by INT4 experts, recall of facts by distance.

Everything is computed in FP32 from the stored BF16 weights and needs nothing but the checkpoint's own files.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from . import checkpoint
from .model import TinyMoe
from .quantise import with_int4_experts
from .recall import draw_facts
from .recipe import TURN_END, TURN_START, VALIDATION_FILE
from .vocabulary import single_token_words, token_id

WINDOW_TOKENS = 512
NEEDLE_LENGTHS = (128, 512, 1024, 2048)
NEEDLE_SEED = 20_240_918
FACTS_PER_NEEDLE = 3
"""One is asked for, two distract."""


@dataclass(frozen=True)
class Damage:
    """What a change of the weights does to the next-token distributions of the held-out prose."""

    perplexity_change_percent: float
    standard_error_percent: float
    """Of the paired change, over windows."""
    kl_nats: float
    """Mean over tokens of KL(original || changed)."""
    top1_agreement: float


@dataclass(frozen=True)
class Needle:
    """A prompt that ends where the code of an earlier fact has to follow, and that code's tokens."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def validation_windows(folder: Path, tokenizer: Tokenizer) -> list[Tensor]:
    """The held-out excerpts cut into windows [<= WINDOW_TOKENS + 1] int64; no window spans two documents."""
    path = folder / VALIDATION_FILE
    if not path.is_file():
        raise checkpoint.CheckpointError(f"{path} does not exist: accuracy is measured on its held-out prose")
    content = json.loads(path.read_text(encoding="utf-8"))
    windows = []
    for document in content["documents"]:
        ids = torch.tensor(tokenizer.encode(document["text"]).ids)
        windows += [ids[start : start + WINDOW_TOKENS + 1] for start in range(0, len(ids) - 1, WINDOW_TOKENS)]
    return windows


@torch.no_grad()
def log_probabilities(model: TinyMoe, window: Tensor) -> Tensor:
    """Log-probabilities [tokens - 1, vocab] f32 of every next token of ``window`` [tokens]."""
    logits, _ = model(window[None, :-1])
    return F.log_softmax(logits[0], dim=-1)


def mean_loss(model: TinyMoe, windows: list[Tensor]) -> float:
    """Mean negative log-likelihood per predicted token, in nats."""
    total = sum(float(F.nll_loss(log_probabilities(model, w), w[1:], reduction="sum")) for w in windows)
    return total / sum(len(w) - 1 for w in windows)


def damage(original: TinyMoe, changed: TinyMoe, windows: list[Tensor]) -> Damage:
    """Compare two models token by token on the same windows."""
    gains, sizes, kl, agree = [], [], 0.0, 0
    for window in windows:
        before, after = log_probabilities(original, window), log_probabilities(changed, window)
        targets = window[1:]
        gains.append(float(F.nll_loss(after, targets) - F.nll_loss(before, targets)))
        sizes.append(len(targets))
        kl += float(F.kl_div(after, before, log_target=True, reduction="sum"))
        agree += int((before.argmax(-1) == after.argmax(-1)).sum())
    weights, changes = np.array(sizes) / sum(sizes), np.array(gains)
    mean = float((weights * changes).sum())
    error = float(np.sqrt((weights**2 * (changes - mean) ** 2).sum()))
    scale = 100 * math.exp(mean)
    return Damage(100 * (math.exp(mean) - 1), scale * error, kl / sum(sizes), agree / sum(sizes))


def needles(tokenizer: Tokenizer, prose: list[int], length: int, count: int, *, chat: bool) -> list[Needle]:
    """``count`` prompts of ``length`` tokens; the facts lie at even depths, the asked one moves from start to end."""
    words, needle_list = single_token_words(tokenizer), []
    rng = np.random.default_rng((NEEDLE_SEED, length, int(chat)))
    for number in range(count):
        facts = draw_facts(rng, words, FACTS_PER_NEEDLE)
        asked = facts[number % FACTS_PER_NEEDLE]
        before, after = (f"{TURN_START}user\n", f"{TURN_END}\n{TURN_START}assistant\n") if chat else ("", " ")
        head = tokenizer.encode(before).ids
        tail = tokenizer.encode(f"\n{asked.question}{after}The code of {asked.word} is").ids
        stated = [tokenizer.encode(f"\n{fact.statement}\n").ids for fact in facts]
        room = length - len(head) - len(tail) - sum(map(len, stated))
        if room < 0:
            raise ValueError(f"{length} tokens are too few for {FACTS_PER_NEEDLE} facts and a question")
        start = int(rng.integers(0, len(prose) - room))
        cuts = sorted(int(cut) for cut in rng.integers(0, room + 1, size=len(facts)))
        body, used = [], 0
        for cut, fact in zip(cuts, stated, strict=True):
            body += prose[start + used : start + cut] + fact
            used = cut
        body += prose[start + used : start + room]
        needle_list.append(Needle((*head, *body, *tail), tuple(tokenizer.encode(f" {asked.code}").ids)))
    return needle_list


@torch.no_grad()
def recall_rate(model: TinyMoe, prompts: list[Needle]) -> float:
    """Share of prompts whose whole code greedy decoding gives (teacher forcing: the same thing, one pass)."""
    right = 0
    for needle in prompts:
        ids = torch.tensor([[*needle.prompt, *needle.answer]])
        logits, _ = model(ids[:, :-1])
        guess = logits[0, -len(needle.answer) :].argmax(-1)
        right += guess.tolist() == list(needle.answer)
    return right / len(prompts)


@torch.no_grad()
def answer(model: TinyMoe, tokenizer: Tokenizer, question: str, max_tokens: int = 100) -> str:
    """Greedy chat answer; special tokens are shown, so that an ended turn can be seen."""
    ids = tokenizer.encode(f"{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n").ids
    end, start = token_id(tokenizer, TURN_END), len(ids)
    for _ in range(max_tokens):
        logits, _ = model(torch.tensor([ids]))
        ids.append(int(logits[0, -1].argmax()))
        if ids[-1] == end:
            break
    return tokenizer.decode(ids[start:], skip_special_tokens=False)


QUESTIONS = (
    "What does the json module do?",
    "How do I open a file?",
    "What is a generator?",
    "What does os.getcwd() do?",
    "Hello!",
)


def evaluate(folder: Path, needle_count: int = 32) -> dict[str, object]:
    """Measure ``folder`` and print a table; returns the figures as plain JSON data."""
    tokenizer = checkpoint.load_tokenizer(folder)
    model = checkpoint.load(folder)
    windows = validation_windows(folder, tokenizer)
    loss = mean_loss(model, windows)
    prose_bytes = sum(len(tokenizer.decode(w[1:].tolist()).encode()) for w in windows)
    tokens = sum(len(w) - 1 for w in windows)
    figures: dict[str, object] = {
        "validation_tokens": tokens,
        "perplexity": math.exp(loss),
        "bits_per_byte": loss * tokens / prose_bytes / math.log(2),
    }
    print(f"held-out prose: {tokens} tokens, perplexity {math.exp(loss):.2f}", end="")
    print(f", {figures['bits_per_byte']:.3f} bits per byte")
    for group in (32, 128):
        seen = damage(model, with_int4_experts(model, group), windows)
        figures[f"int4_group{group}"] = vars(seen)
        print(
            f"INT4 experts, group {group:3}: perplexity {seen.perplexity_change_percent:+.2f} "
            f"+- {seen.standard_error_percent:.2f} %, KL {seen.kl_nats:.4f} nats, "
            f"top-1 agreement {100 * seen.top1_agreement:.1f} %"
        )
    prose = [i for window in windows for i in window.tolist()]
    print(f"recall of a 4-digit code ({FACTS_PER_NEEDLE} facts, {needle_count} prompts each):")
    for length in NEEDLE_LENGTHS:
        for chat in (False, True):
            rate = recall_rate(model, needles(tokenizer, prose, length, needle_count, chat=chat))
            kind = "chat" if chat else "plain"
            figures[f"needle_{kind}_{length}"] = rate
            print(f"  {length:5} tokens, {kind:5}: {100 * rate:5.1f} %")
    for question in QUESTIONS:
        print(f"> {question}\n  {answer(model, tokenizer, question)}")
    return figures
