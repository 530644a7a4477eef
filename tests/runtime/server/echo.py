"""A torch-free engine in a real engine process: it answers with the prompt, and does as the prompt tells it.

`echo TEXT` gives TEXT back, one token per step. The words in `COMMANDS` stand for what an engine can do to a server.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from octavo_runtime.contract.facts import AttentionFacts, AttentionKind, CheckpointFormat, ModelFacts, ParameterFacts
from octavo_runtime.contract.refused import Refused
from octavo_runtime.engine.logs import LogFormat
from octavo_runtime.engine.messages import (
    EngineStats,
    FinishReason,
    KernelChoice,
    MemoryLine,
    RequestFailed,
    Started,
    Submit,
    Token,
)
from octavo_runtime.engine.process import EngineProgram, Report
from octavo_runtime.engine.result import StepResult
from octavo_runtime.engine.settings import EngineSettings
from octavo_runtime.server.text import GenerationDefaults, TextCodec

BYTES = 256
END = BYTES
"""The stop token."""
VOCABULARY = BYTES + 1
MAX_MODEL_LEN = 256

HOLD, RELEASE, FAIL, FAIL_LATE, DIE, HANG = "hold", "release", "fail", "fail late", "die", "hang"
COMMANDS = frozenset({HOLD, RELEASE, FAIL, FAIL_LATE, DIE, HANG})

FACTS = ModelFacts(
    architecture="Echo",
    revision="test",
    layers=1,
    hidden_size=8,
    vocab_size=VOCABULARY,
    max_position_embeddings=MAX_MODEL_LEN,
    attention=AttentionFacts(kind=AttentionKind.GQA, heads=1, kv_heads=1, head_dim=8),
    format=CheckpointFormat.BF16,
    parameters=ParameterFacts(routed_experts=0, embeddings=0, other=0),
    checkpoint_bytes=0,
)


def byte_tokenizer() -> Tokenizer:
    """A token for every byte, so that most characters outside ASCII span several tokens."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


class PlainTemplate:
    """The last message's text and nothing else."""

    chat_template: str | None = "plain"

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        return conversation[-1]["content"]


def byte_codec() -> TextCodec:
    return TextCodec(byte_tokenizer(), PlainTemplate(), GenerationDefaults(temperature=0.0, stop_tokens=(END,)))


@dataclass
class _Running:
    message: Submit
    text: str
    sent: int = 0
    held: bool = False
    """Does nothing until it is released."""


@dataclass
class EchoEngine:
    """Obeys `engine.result.Steps`."""

    slots: int
    running: dict[str, _Running] = field(default_factory=dict)
    tokenizer: Tokenizer = field(default_factory=byte_tokenizer)
    steps: int = 0

    @property
    def idle(self) -> bool:
        return all(one.held for one in self.running.values())

    def submit(self, message: Submit) -> None:
        text = self.tokenizer.decode(message.prompt).removeprefix("echo ")
        match text:
            case str() if text == DIE:
                os._exit(7)
            case str() if text == HANG:
                time.sleep(3600)
            case str() if text == RELEASE:
                for one in self.running.values():
                    one.held = False
        self.running[message.request] = _Running(message, text, held=text == HOLD)

    def cancel(self, request_id: str) -> None:
        self.running.pop(request_id, None)

    def step(self) -> StepResult:
        self.steps += 1
        tokens: list[Token] = []
        failures: list[RequestFailed] = []
        for name, one in list(self.running.items()):
            if one.held:
                continue
            if one.text == FAIL or (one.text == FAIL_LATE and one.sent == 3):
                failures.append(RequestFailed(name, "kv_integrity_violation", "pages are not its own", retryable=True))
                del self.running[name]
                continue
            tokens.append(self._next(name, one))
            if tokens[-1].finish is not None:
                del self.running[name]
        return StepResult(tuple(tokens), tuple(failures))

    def _next(self, name: str, one: _Running) -> Token:
        answer = self.tokenizer.encode(one.text).ids
        one.sent += 1
        if one.sent > len(answer) and END in one.message.stop_tokens:
            return Token(name, END, FinishReason.STOP)
        finish = FinishReason.LENGTH if one.sent == one.message.max_tokens else None
        return Token(name, answer[(one.sent - 1) % len(answer)], finish)

    def audit(self) -> None:
        """Nothing to audit."""

    def self_check(self) -> None:
        """Nothing to ask."""

    def stats(self) -> EngineStats:
        return EngineStats(
            steps=self.steps,
            running=len(self.running),
            waiting=0,
            kv_tokens_used=sum(len(one.message.prompt) + one.sent for one in self.running.values()),
            kv_pages_free=64 - len(self.running),
            kv_pages_set_aside=0,
            preemptions=0,
            recomputed=0,
            integrity_checks=self.steps,
            integrity_violations={"tag": 2},
            integrity_cancelled=0,
        )


def start_echo(settings: EngineSettings, report: Report) -> tuple[EchoEngine, Started]:
    report("load", "nothing to load")
    return EchoEngine(settings.max_num_seqs), Started(
        weights="BF16",
        kv_cache="BF16",
        device="CPU",
        kv_tokens=64 * 64,
        kv_pages=65,
        page_size=64,
        max_model_len=MAX_MODEL_LEN,
        kernels=[KernelChoice("paged_attention", "echo")],
        memory=[MemoryLine("kv", 100, 101)],
    )


def refuse_to_start(settings: EngineSettings, report: Report) -> tuple[EchoEngine, Started]:
    raise Refused("UnexpectedDevice", "expected another device")


def crash_at_start(settings: EngineSettings, report: Report) -> tuple[EchoEngine, Started]:
    raise RuntimeError("no such kernel")


def never_starts(settings: EngineSettings, report: Report) -> tuple[EchoEngine, Started]:
    time.sleep(3600)
    raise AssertionError


def program(start: object = start_echo, max_num_seqs: int = 4) -> EngineProgram:
    settings = EngineSettings(model=Path("/nowhere"), facts=FACTS, max_num_seqs=max_num_seqs)
    return EngineProgram(start, settings, LogFormat.LOGFMT)  # type: ignore[arg-type]
