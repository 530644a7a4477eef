"""/v1/models, /v1/chat/completions and /v1/completions: OpenAI's wire format over one engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from octavo_runtime.engine.logs import logger
from octavo_runtime.engine.messages import Submit
from octavo_runtime.server.answers import Answer, AnswerWriter, ChatWriter, CompletionWriter, Json, Usage
from octavo_runtime.server.body import read_json
from octavo_runtime.server.errors import ApiError
from octavo_runtime.server.generation import Generation, Piece
from octavo_runtime.server.schema import ChatBody, CompletionBody, GenerationBody, parse_body

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions; chat answers go on as long as the context allows."""

EVENT_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

T = TypeVar("T")


@dataclass(frozen=True)
class OpenAiApi:
    """The endpoints. `generation` is asked for at each request, since the model may still be loading at the start."""

    served_model: str
    created: int
    """Unix seconds at which the server started."""
    generation: Callable[[], Generation]

    async def models(self, _request: Request) -> Response:
        """GET /v1/models: the one model that is served."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        self._require_model(request.path_params["model"])
        return JSONResponse(self._card())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        arrived, generation = self._begin()
        body = parse_body(ChatBody, await read_json(request, *generation.body_limits))
        self._require_model(body.model)
        prompt = await generation.codec.encode_chat([message.plain() for message in body.messages])
        writer = ChatWriter(_new_id("chatcmpl"), self.served_model, int(time.time()))
        submit = generation.submit_for(body, writer.id, prompt, body.limit)
        return await self._answer(request, generation, body, submit, writer, arrived)

    async def completion(self, request: Request) -> Response:
        """POST /v1/completions."""
        arrived, generation = self._begin()
        body = parse_body(CompletionBody, await read_json(request, *generation.body_limits))
        self._require_model(body.model)
        given = body.only_prompt
        prompt = await generation.codec.encode(given) if isinstance(given, str) else given
        writer = CompletionWriter(_new_id("cmpl"), self.served_model, int(time.time()))
        limit = body.max_tokens or min(DEFAULT_COMPLETION_TOKENS, max(1, generation.max_model_len - len(prompt)))
        submit = generation.submit_for(body, writer.id, prompt, limit)
        return await self._answer(request, generation, body, submit, writer, arrived)

    def _card(self) -> Json:
        return {
            "id": self.served_model,
            "object": "model",
            "created": self.created,
            "owned_by": "octavo",
            "max_model_len": self.generation().max_model_len,
        }

    def _begin(self) -> tuple[float, Generation]:
        generation = self.generation()
        return generation.clock(), generation

    def _require_model(self, name: str) -> None:
        if name != self.served_model:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"the model {name!r} does not exist; this server serves {self.served_model!r}",
                "model_not_found",
                "model",
                should_retry=False,
            )

    async def _answer(
        self,
        request: Request,
        generation: Generation,
        body: GenerationBody,
        submit: Submit,
        writer: AnswerWriter,
        arrived: float,
    ) -> Response:
        generation.admit(len(submit.prompt), submit.n)
        pieces = generation.pieces(submit, body.stops, arrived)
        if not body.stream:
            return JSONResponse(await _unless_gone(request, _whole(pieces, submit, writer)))
        # The first piece decides the status: an error before any text is an HTTP error, not an event.
        first = await _unless_gone(request, anext(pieces))
        events = _events(first, pieces, submit, writer, include_usage=body.include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers=EVENT_STREAM_HEADERS)


async def _whole(pieces: AsyncGenerator[Piece, None], submit: Submit, writer: AnswerWriter) -> Json:
    texts: list[list[str]] = [[] for _ in range(submit.n)]
    finishes: dict[int, str] = {}
    async with aclosing(pieces):
        async for piece in pieces:
            texts[piece.index].append(piece.text)
            if piece.finish is not None:
                finishes[piece.index] = piece.finish
    answers = [Answer("".join(text), finishes[index]) for index, text in enumerate(texts)]
    return writer.whole(answers, Usage(len(submit.prompt), piece.tokens))


async def _events(
    first: Piece, rest: AsyncGenerator[Piece, None], submit: Submit, writer: AnswerWriter, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events; the answers' chunks are mixed as their tokens come. An error after the first piece is an
    event of its own, and then no `[DONE]`."""
    begun: set[int] = set()
    piece: Piece | None = first
    tokens = 0
    async with aclosing(rest):
        try:
            while piece is not None:
                if piece.text or piece.index not in begun:
                    yield _event(writer.chunk(piece.index, piece.text, first=piece.index not in begun))
                begun.add(piece.index)
                if piece.finish is not None:
                    yield _event(writer.chunk(piece.index, None, piece.finish))
                tokens, piece = piece.tokens, await anext(rest, None)
            if include_usage:
                yield _event(writer.usage_chunk(Usage(len(submit.prompt), tokens)))
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            logger("server").warning(
                "stream ended with an error", extra={"request": submit.request, "code": error.code}
            )
            yield _event(error.body())


def _event(body: Json) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up first (raises ClientDisconnect)."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_hang_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError, ApiError):
            await task


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"
