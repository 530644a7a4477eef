"""A torch-free engine in a real engine process: it answers with the prompt, and does as the prompt tells it.

`echo TEXT` gives TEXT back, one token per step, `each A|B|C` gives each of its answers another part, and a part
`pause A` gives A and then nothing more. The words in `COMMANDS` stand for what an engine can do to a server.
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
    Violation,
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
VIOLATE, STALL, RECOVER, TELL = "violate", "stall", "recover", "tell"
"""Find a violation; let the integrity check stall and speak again; answer with priority and salt."""
COMMANDS = frozenset({HOLD, RELEASE, FAIL, FAIL_LATE, DIE, HANG, VIOLATE, STALL, RECOVER, TELL})
EACH, PAUSE = "each ", "pause "
VIOLATION_TIME = 1_700_000_000.0

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
    index: int
    text: str
    sent: int = 0
    held: bool = False
    """Does nothing until it is released."""
    pauses: bool = False
    """Is held once its text has come."""


@dataclass
class EchoEngine:
    """Obeys `engine.result.Steps`."""

    slots: int
    running: dict[tuple[str, int], _Running] = field(default_factory=dict)
    tokenizer: Tokenizer = field(default_factory=byte_tokenizer)
    steps: int = 0
    stalled: bool = False
    found: int = 0
    """Violations, each of which is told of once."""
    untold: list[Violation] = field(default_factory=list)

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
            case str() if text == VIOLATE:
                self.found += 1
                self.untold.append(self._violation(message.request))
            case str() if text in {STALL, RECOVER}:
                self.stalled = text == STALL
            case str() if text == TELL:
                text = f"{message.priority} {message.cache_salt}"
        parts = text.removeprefix(EACH).split("|") if text.startswith(EACH) else [text] * message.n
        for index in range(message.n):
            part = parts[index].removeprefix(PAUSE)
            one = _Running(message, index, part, held=part == HOLD, pauses=part != parts[index])
            self.running[message.request, index] = one

    def _violation(self, request: str) -> Violation:
        return Violation(
            id=self.found,
            time=VIOLATION_TIME + self.found,
            step=self.steps,
            site="table",
            reasons=("tag", "binding"),
            request=request,
            pages=(3, 4),
            action="reported",
        )

    def cancel(self, request_id: str, index: int | None = None) -> None:
        for name in [name for name in self.running if name[0] == request_id and index in {None, name[1]}]:
            del self.running[name]

    def step(self) -> StepResult:
        self.steps += 1
        tokens: list[Token] = []
        failures: list[RequestFailed] = []
        for name, one in list(self.running.items()):
            if one.held or name not in self.running:
                continue
            if one.text == FAIL or (one.text == FAIL_LATE and one.sent == 3):
                request = one.message.request
                message = "pages are not its own"
                failures.append(RequestFailed(request, "kv_integrity_violation", message, retryable=True))
                self.cancel(request)
                continue
            tokens.append(self._next(one))
            if tokens[-1].finish is not None:
                del self.running[name]
        untold, self.untold = tuple(self.untold), []
        return StepResult(tuple(tokens), tuple(failures), untold)

    def _next(self, one: _Running) -> Token:
        request, answer = one.message.request, self.tokenizer.encode(one.text).ids
        one.sent += 1
        one.held = one.pauses and one.sent == len(answer)
        if one.sent > len(answer) and END in one.message.stop_tokens:
            return Token(request, END, FinishReason.STOP, one.index)
        finish = FinishReason.LENGTH if one.sent == one.message.max_tokens else None
        return Token(request, answer[(one.sent - 1) % len(answer)], finish, one.index)

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
            integrity_violations={"tag": 2 + self.found},
            integrity_cancelled=0,
            prefix_queried_tokens=50,
            prefix_hit_tokens=20,
            integrity_stalled=self.stalled,
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
