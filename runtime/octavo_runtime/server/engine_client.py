"""EngineClient: the HTTP process's view of the engine process.

It starts the process, gives each request its own stream of tokens, and notices the engine's death at once (the socket
ends) and its stall after a while (heartbeats stop). Either ends every stream with an error: nothing waits for ever.
A request may have several answers: its stream carries the tokens of all and ends with the last of them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.process
import socket
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import msgspec

from octavo_runtime.engine.logs import logger
from octavo_runtime.engine.messages import (
    LENGTH_BYTES,
    Cancel,
    EngineStats,
    Failed,
    Message,
    ProtocolError,
    RequestFailed,
    Shutdown,
    Started,
    Starting,
    Stepped,
    Submit,
    Token,
    encode,
    frame_length,
    from_engine,
)
from octavo_runtime.engine.process import EngineProgram, run_engine_process
from octavo_runtime.server.integrity import RecentViolations

EXIT_WAIT_SECONDS = 5.0


class RequestError(Exception):
    """A request ended with an error in the engine, or with the engine."""

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


ENGINE_DEAD = "engine_dead"
ENGINE_STALLED = "engine_stalled"
"""The engine lives and does not step."""


@dataclass(eq=False)
class _Open:
    """A request whose stream has not ended."""

    prompt_tokens: int
    going_on: set[int]
    """Answers that have not ended."""
    queue: asyncio.Queue[Token | RequestFailed] = field(default_factory=asyncio.Queue)
    answered: bool = False


class EngineClient:
    """Owns the engine process; belongs to one event loop. `clock` is monotonic seconds."""

    def __init__(self, program: EngineProgram, clock: Callable[[], float]) -> None:
        self._program = program
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._process: multiprocessing.process.BaseProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._last_sign_of_life = clock()
        self._gone = False
        self._reader_task: asyncio.Task[None] | None = None
        self.started: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
        """The engine answers; cancelled when it ends before it did."""
        self.ended: asyncio.Future[Failed] = asyncio.get_running_loop().create_future()
        """The engine is gone, and why."""
        self.stats: EngineStats | None = None
        self.violations = RecentViolations()
        self.started_at = time.time()
        """Unix seconds; tells the ids of this engine's violations from those of another one."""

    async def start(self) -> None:
        """Start the process and listen to it; returns at once."""
        ours, theirs = socket.socketpair()
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=run_engine_process, args=(self._program, theirs), name="octavo-engine", daemon=True
        )
        process.start()
        theirs.close()  # the only copy is the engine's now: its death closes the pair
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._process = process
        self._reader_task = asyncio.create_task(self._read(reader), name="engine-reader")

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the engine process has not ended."""
        return not self._gone

    @property
    def silent_seconds(self) -> float:
        """Seconds since the engine gave a sign of life; it gives one with every step and twice a second when idle."""
        return self._clock() - self._last_sign_of_life

    @property
    def open_answers(self) -> int:
        """Answers of all requests that have not ended: each wants a place in the batch."""
        return sum(len(one.going_on) for one in self._open.values())

    @property
    def unanswered_prompt_tokens(self) -> int:
        """Prompt tokens of requests without a first token."""
        return sum(one.prompt_tokens for one in self._open.values() if not one.answered)

    async def generate(self, request: Submit) -> AsyncGenerator[Token, None]:
        """The tokens of all the request's answers as they come; raises RequestError. Closing the iterator early frees
        its pages."""
        if not self.alive or self._writer is None:
            raise RequestError(ENGINE_DEAD, "the engine is not running", retryable=True)
        one = _Open(len(request.prompt), set(range(request.n)))
        self._open[request.request] = one
        self._send(request)
        try:
            while one.going_on:
                item = await one.queue.get()
                one.answered = True
                if isinstance(item, RequestFailed):
                    one.going_on.clear()
                    raise RequestError(item.code, item.message, retryable=item.retryable)
                if item.index not in one.going_on:
                    continue  # on its way when the answer was ended here
                if item.finish is not None:
                    one.going_on.remove(item.index)
                yield item
        finally:
            del self._open[request.request]
            if one.going_on:
                self._send(Cancel(request.request))

    def end_answer(self, request: str, index: int) -> None:
        """End one answer of an open request; tokens of it that are still on their way are dropped."""
        one = self._open[request]
        if one.going_on == {index}:
            self._send(Cancel(request))
        elif index in one.going_on:
            self._send(Cancel(request, index))
        one.going_on.discard(index)

    def fail_open_requests(self, code: str, message: str) -> None:
        """End every open stream with a retryable error, and the requests in the engine with it."""
        for request, one in self._open.items():
            one.queue.put_nowait(RequestFailed(request, code, message, retryable=True))
            self._send(Cancel(request))

    def kill(self) -> None:
        """End an engine that does not listen, at once and without a word."""
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """Tell the engine to end, and end it when it does not within a few seconds or does not listen yet."""
        self._send(Shutdown())
        if self._process is not None:
            if not self.started.done():
                self._process.kill()
            await asyncio.to_thread(self._process.join, EXIT_WAIT_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                await asyncio.to_thread(self._process.join, EXIT_WAIT_SECONDS)
        if self._reader_task is not None:
            await self._reader_task
        if self._writer is not None:
            self._writer.close()

    def _send(self, message: Message) -> None:
        """Queue a message; to a dead engine it goes nowhere, and the reader says so to everyone."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        failed: Failed | None = None
        try:
            while failed is None:
                length = frame_length(await reader.readexactly(LENGTH_BYTES))
                failed = self._handle(from_engine.decode(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, OSError):
            pass  # the engine is gone without a word
        except (ProtocolError, msgspec.MsgspecError) as error:
            failed = Failed("EngineProtocol", str(error), refused=False, retryable=True)
        await self._bury(failed)

    def _handle(self, message: Starting | Started | Stepped | Failed) -> Failed | None:
        self._last_sign_of_life = self._clock()
        match message:
            case Starting():
                logger("engine").info("starting", extra={"stage": message.stage, "detail": message.detail})
            case Started():
                if not self.started.done():
                    self.started.set_result(message)
            case Stepped():
                self.stats = message.stats
                self.violations.add(message.violations)
                items: list[Token | RequestFailed] = [*message.tokens, *message.failures]
                for item in items:
                    if one := self._open.get(item.request):
                        one.queue.put_nowait(item)
            case Failed():
                return message
        return None

    async def _bury(self, failed: Failed | None) -> None:
        """Every open request gets an error now; then the exit code is looked at for the record."""
        self._gone = True
        why = "the engine process ended" if failed is None else failed.message
        for request, one in self._open.items():
            one.queue.put_nowait(RequestFailed(request, ENGINE_DEAD, why, retryable=True))
        if failed is None:
            assert self._process is not None
            await asyncio.to_thread(self._process.join, EXIT_WAIT_SECONDS)
            code = self._process.exitcode
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            failed = Failed("EngineDied", f"the engine process ended ({how})", refused=False, retryable=True)
        self.ended.set_result(failed)
        if not self.started.done():
            self.started.cancel()
