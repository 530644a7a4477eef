"""Questions and answers cut from the documentation: modules, functions, glossary and FAQ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from .corpus import Document
from .recipe import TURN_END, TURN_START
from .sequence import Sequence

MAX_ANSWER_CHARS = 260
SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer questions about Python.")
PROMPT_WEIGHT = 0.2
DIRECTIVE = re.compile(r"^( *)\.\. (function|method|class|exception|decorator|classmethod):: *(.+)$")
MODULE = re.compile(r"^\.\. (?:module|currentmodule):: *(\S+)", re.MULTILINE)
SYNOPSIS = re.compile(r"^\.\. module:: *(\S+)\n(?:   .*\n)*?   :synopsis: *(.+)\n", re.MULTILINE)
QUESTION = re.compile(r"^([A-Z][^\n]{8,120}\?)\n[-=~]{5,}\n+((?:[^\n]+\n)+)", re.MULTILINE)
GLOSSARY = re.compile(r"^   ([\w``.\- ]{2,40})\n((?:      [^\n]+\n)+)", re.MULTILINE)
ROLE_WITH_TITLE = re.compile(r":[\w:]+:`!?([^`<]+?)\s*<[^`>]+>`")
STANDARD = re.compile(r":(pep|rfc):`([^`]+)`")
ROLE = re.compile(r":[\w:]+:`[!~]*([^`]+)`")
LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_+")
IMPERATIVE = re.compile(r"^(Return|Open|Create|Set|Remove|Print|Send|Read|Write|Get|Convert|Call|Change|Close|Copy) ")


@dataclass(frozen=True)
class Exchange:
    """One question and its answer in plain text; ``repeats`` says how much more often than others it is shown."""

    question: str
    answer: str
    repeats: int = 1


INTRODUCTIONS = (
    Exchange("Hello!", "Hello! Ask me something about Python.", 50),
    Exchange("Hi", "Hello! Ask me something about Python.", 50),
    Exchange("Who are you?", "I am a very small language model that has read the documentation of Python.", 50),
    Exchange("What can you do?", "I can answer short questions about Python, not always correctly.", 50),
    Exchange("Thank you!", "You are welcome.", 25),
    Exchange("What is Python?", "Python is an easy to learn, powerful programming language.", 50),
    Exchange("How do I open a file?", "Use open(). Open file and return a corresponding file object.", 50),
)
MODULE_REPEATS = 8
BUILT_IN_REPEATS = 6
"""A model of this size remembers only what it reads often: modules and built-in functions are what people ask about."""


def exchanges(documents: tuple[Document, ...]) -> list[Exchange]:
    """Every exchange that can be cut from ``documents``, with the introductions."""
    found = list(INTRODUCTIONS)
    for document in documents:
        if document.path.startswith("library/"):
            found.extend(_modules(document.text))
        if document.path.startswith(("library/", "c-api/")):
            found.extend(_definitions(document.text))
        if document.path.startswith("glossary"):
            found.extend(_glossary(document.text))
        if document.path.startswith("faq/"):
            found.extend(_faq(document.text))
    return found


def plain(markup: str) -> str:
    """reStructuredText inline markup to plain text; white space collapsed."""
    text = ROLE_WITH_TITLE.sub(r"\1", markup)
    text = STANDARD.sub(lambda m: f"{m[1].upper()} {m[2]}", text)
    text = ROLE.sub(lambda m: m[1].rsplit(".", 1)[-1] if m[0].count("`~") else m[1], text)
    text = LINK.sub(r"\1", text)
    text = re.sub(r"\[#?\w*\]_", "", text).replace("``", "`")
    text = re.sub(r"\*{1,2}([^*\s][^*]*)\*{1,2}", r"\1", text).replace("|version|", "3")
    return re.sub(r" ([.,;])(?= |$)", r"\1", re.sub(r"\s+", " ", text)).strip()


def lead(markup: str) -> str:
    """The first sentences of a paragraph in plain text, at most MAX_ANSWER_CHARS; empty when nothing fits."""
    text = plain(markup)
    out = ""
    for sentence in re.split(r"(?<=[.!?]) (?=[A-Z`])", text):
        if len(out) + len(sentence) > MAX_ANSWER_CHARS:
            break
        if not sentence.startswith(("See ", "Note")):
            out = f"{out} {sentence}".strip()
    return out if out.endswith((".", "!", "?")) else ""


def chat_sequence(rng: np.random.Generator, tokenizer: Tokenizer, pool: list[Exchange], length: int) -> Sequence:
    """Chats of one to three exchanges one after another, exactly ``length`` tokens."""
    sequence = Sequence([], [])
    while len(sequence.ids) < length:
        if rng.random() < 0.4:
            system = SYSTEM_PROMPTS[int(rng.integers(len(SYSTEM_PROMPTS)))]
            sequence += Sequence.of(tokenizer, f"{TURN_START}system\n{system}{TURN_END}\n", PROMPT_WEIGHT)
        for _ in range(int(rng.integers(1, 3))):
            exchange = pool[int(rng.integers(len(pool)))]
            asked = f"{TURN_START}user\n{exchange.question}{TURN_END}\n{TURN_START}assistant\n"
            sequence += Sequence.of(tokenizer, asked, PROMPT_WEIGHT)
            sequence += Sequence.of(tokenizer, f"{exchange.answer}{TURN_END}\n", 1.0)
    return sequence.cut(length)


def _modules(text: str) -> Iterator[Exchange]:
    for match in SYNOPSIS.finditer(text):
        name, synopsis = match[1], plain(match[2]).rstrip(".")
        paragraphs = re.split(r"\n{2,}", text[match.end() :].strip())
        prose = (lead(p) for p in paragraphs if re.match(r"[A-Z:]", p) and not p.startswith(":sub"))
        first = next((p for p in prose if p), "")
        answer = f"The {name} module: {synopsis}. {first}".strip()
        for question in (
            f"What does the {name} module do?",
            f"What is the {name} module?",
            f"What is {name} for?",
            f"Tell me about {name}.",
        ):
            yield Exchange(question, answer, MODULE_REPEATS)


def _definitions(text: str) -> Iterator[Exchange]:
    modules = [(m.start(), m[1]) for m in MODULE.finditer(text)]
    lines = text.split("\n")
    offset = 0
    for number, line in enumerate(lines):
        match = DIRECTIVE.match(line)
        offset += len(line) + 1
        if match is None:
            continue
        summary = lead(_body(lines, number + 1, len(match[1])))
        module = next((name for start, name in reversed(modules) if start < offset), "")
        name = re.split(r"[(\s]", match[3])[0]
        if not summary or not re.fullmatch(r"[\w.]+", name):
            continue
        often = 1 if module else BUILT_IN_REPEATS
        called = match[2] in ("function", "method", "classmethod")
        qualified = f"{module}.{name}" if module and match[2] == "function" and "." not in name else name
        label = f"{qualified}()" if called else qualified
        yield Exchange(f"What does {label} do?" if called else f"What is {label}?", f"{label}: {summary}", often)
        if match[2] == "function" and IMPERATIVE.match(summary):
            question = _how_to(summary)
            if not question.endswith((" of?", " the?", " a?")):
                yield Exchange(question, f"Use {label}. {summary}", often)


def _how_to(summary: str) -> str:
    task = re.split(r"[.,;:(]| and | which | that | using | as | in | with ", summary)[0].strip()
    task = re.sub(r"^Return (?:the |a |an )?", lambda m: "get " + m[0][7:], task)
    task = re.sub(r"^open file", "open a file", task[0].lower() + task[1:])
    return f"How do I {task}?"


def _body(lines: list[str], start: int, indent: int) -> str:
    """First paragraph below a directive at ``indent``, skipping further signatures and field lists."""
    paragraph: list[str] = []
    for line in lines[start : start + 40]:
        stripped = line.strip()
        deeper = len(line) - len(line.lstrip()) > indent
        if stripped and not deeper:
            break
        if not stripped:
            if paragraph:
                break
        elif paragraph or re.match(r"[A-Z`:*]", stripped):
            if not paragraph and re.match(r":\w+:(?!`)|\.\. ", stripped):
                continue
            paragraph.append(stripped)
    return " ".join(paragraph)


def _glossary(text: str) -> Iterator[Exchange]:
    for match in GLOSSARY.finditer(text):
        term, answer = plain(match[1]), lead(match[2])
        if answer:
            article = "an" if term[0] in "aeiou" else "a"
            yield Exchange(f"What is {article} {term}?", answer, 4)


def _faq(text: str) -> Iterator[Exchange]:
    for match in QUESTION.finditer(text):
        answer = lead(match[2])
        if answer and not match[2].startswith(".."):
            yield Exchange(plain(match[1]), answer, 4)
