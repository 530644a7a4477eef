"""What the HTTP process and the engine process say to each other: closed, typed msgpack frames.

The HTTP process says Submit, Cancel and Shutdown; the engine says Starting, Started, Stepped and Failed. A frame is a
little-endian u32 length and that many bytes of msgpack. There is no acknowledgement: the socket is reliable and local,
and when it closes the other side is dead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum

import msgspec

FRAME_LIMIT_BYTES = 256 << 20
"""No message comes near: a prompt of a million tokens is about 5 MB. Beyond it the peer speaks another protocol."""

VIOLATION_PAGES = 64
"""Pages that a violation's record names at most."""

_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size


class FinishReason(StrEnum):
    """Why a request ended; the first two are OpenAI's names."""

    STOP = "stop"
    """A stop token (here) or a stop string (found by the HTTP process)."""
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next token is chosen. Temperature 0 is greedy; top_p 1 and top_k 0 are off."""

    temperature: float
    top_p: float
    top_k: int
    seed: int
    """Together with a token's position it fixes the random draw, whatever else is in the batch."""


class Submit(Message, frozen=True):
    """A new request."""

    request: str
    """Unique id of the request, chosen by the HTTP process."""
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop_tokens: list[int]
    """Ids that end the answer and are not part of it."""
    n: int = 1
    """Answers to this prompt: forks that share the prompt's pages. Fork `i` draws with seed `seed + i`."""
    priority: int = 0
    """Lower is more urgent (`engine.scheduler` says what it is worth)."""
    cache_salt: str = ""
    """Prefixes are shared only among requests with the same salt."""


class Cancel(Message, frozen=True):
    """Nobody waits for this request any more; unknown and finished ids are ignored."""

    request: str
    index: int | None = None
    """Only this one of the request's `n` answers: a stop string ended it while others go on. None is all of them."""


class Shutdown(Message, frozen=True):
    """Stop after the current step and exit 0; open requests get an error."""


class Starting(Message, frozen=True):
    """A line of start-up progress: the same stage names in every log."""

    stage: str
    detail: str


class KernelChoice(msgspec.Struct, frozen=True):
    """Which implementation runs an operation."""

    operation: str
    implementation: str


class MemoryLine(msgspec.Struct, frozen=True):
    """Planned against measured bytes of one part (weights, kv)."""

    part: str
    planned_bytes: int
    measured_bytes: int


class Started(Message, frozen=True):
    """The model is loaded and warm: requests will be answered."""

    weights: str
    kv_cache: str
    device: str
    kv_tokens: int
    kv_pages: int
    page_size: int
    max_model_len: int
    kernels: list[KernelChoice]
    memory: list[MemoryLine]


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One token of one request, with the reason when it is the last thing said about it."""

    request: str
    token: int
    finish: FinishReason | None
    index: int = 0
    """Which of the request's `n` answers."""


class RequestFailed(msgspec.Struct, frozen=True):
    """A request that ends with an error, all of its answers; `code` is one of the engine's error codes."""

    request: str
    code: str
    message: str
    retryable: bool


class Violation(msgspec.Struct, frozen=True):
    """One finding of the KV integrity check."""

    id: int
    """Counts from 1 in this engine's life."""
    time: float
    """Unix seconds."""
    step: int
    site: str
    """Which layer of the defence spoke: host, table, write, digest or rank."""
    reasons: tuple[str, ...]
    request: str
    """Empty where no request is concerned (a padding row, the pool's own books)."""
    pages: tuple[int, ...]
    """Pages that the request held, or that the finding names; at most `VIOLATION_PAGES`."""
    action: str
    """What followed: cancelled, recomputed, reported or none."""


class EngineStats(msgspec.Struct, frozen=True):
    """Counters since start and gauges as of this message."""

    steps: int
    running: int
    waiting: int
    kv_tokens_used: int
    kv_pages_free: int
    kv_pages_set_aside: int
    preemptions: int
    recomputed: int
    integrity_checks: int
    integrity_violations: dict[str, int]
    """By reason."""
    integrity_cancelled: int
    kv_tokens_retained: int = 0
    """Tokens in pages that only the prefix cache keeps."""
    waiting_tokens: int = 0
    """Known tokens of waiting requests."""
    prefix_queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hit_tokens: int = 0
    """Prompt tokens found there."""
    forks: int = 0
    pages_copied: int = 0
    digests_checked: int = 0
    """Page digests compared: sampled ones and those of moved pages."""
    audits: int = 0
    """Full audits of the pool."""
    integrity_stalled: bool = False
    """The check did not speak when it was last asked."""


class Stepped(Message, frozen=True):
    """What a step gave; without tokens it is the heartbeat of an engine that has nothing to do."""

    stats: EngineStats
    tokens: list[Token] = []
    failures: list[RequestFailed] = []
    violations: list[Violation] = []


class Failed(Message, frozen=True):
    """The engine ends. `refused` tells a wrong input (exit 3) from a defect or a broken environment (exit 1)."""

    reason: str
    message: str
    refused: bool
    retryable: bool


ToEngine = Submit | Cancel | Shutdown
FromEngine = Starting | Started | Stepped | Failed


class ProtocolError(Exception):
    """The peer sent something that is not a frame of this protocol."""


_encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: Message) -> bytes:
    """One frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def frame_length(header: bytes | bytearray) -> int:
    """Body bytes announced by a frame's first four bytes; raises ProtocolError when absurd."""
    length: int = _LENGTH.unpack(header)[0]
    if length > FRAME_LIMIT_BYTES:
        raise ProtocolError(f"frame of {length} bytes, the limit is {FRAME_LIMIT_BYTES}")
    return length


class FrameSplitter:
    """Cuts a byte stream into frame bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Bodies of all frames complete with `data`."""
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + frame_length(self._buffer[:LENGTH_BYTES])
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[LENGTH_BYTES:end])
            del self._buffer[:end]
            yield body
