"""From a validated request to pieces of text: limits, admission, the engine's tokens, detokenising, stop strings."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus

from octavo_runtime.engine.detokenise import Detokeniser, StopStrings
from octavo_runtime.engine.logs import logger
from octavo_runtime.engine.messages import FinishReason, Sampling, Submit, Token
from octavo_runtime.server.admission import AdmissionLimits, FinishRate, Load, reject
from octavo_runtime.server.engine_client import ENGINE_DEAD, ENGINE_STALLED, EngineClient, RequestError
from octavo_runtime.server.errors import ApiError, bad_request, engine_gone, unavailable
from octavo_runtime.server.metrics import ServerMetrics
from octavo_runtime.server.schema import GenerationBody
from octavo_runtime.server.text import TextCodec

SEED_MASK = 2**32 - 1

DRAIN_DEADLINE = "drain_deadline"
"""The server stops and this request did not end within the drain time."""


@dataclass(frozen=True)
class Piece:
    """Text of one answer that became certain, with the finish reason when it is the answer's last."""

    index: int
    """Which of the request's answers."""
    text: str
    tokens: int
    """Tokens of all answers generated so far."""
    finish: FinishReason | None


@dataclass
class _Answer:
    """What turns one answer's tokens into text."""

    detokeniser: Detokeniser
    scanner: StopStrings
    last: float | None = None
    """When its last token came."""

    def push(self, token: Token) -> tuple[str, FinishReason | None]:
        """Text that became certain with `token`, and why the answer ends with it."""
        text = "" if token.finish is FinishReason.STOP else self.detokeniser.push(token.token)
        if token.finish is not None:
            text += self.detokeniser.finish()
        certain, stopped = self.scanner.push(text)
        if stopped:
            return certain, FinishReason.STOP
        if token.finish is not None:
            certain += self.scanner.finish()
        return certain, token.finish


@dataclass(frozen=True)
class Generation:
    """Answers requests with one engine and one tokenizer."""

    client: EngineClient
    codec: TextCodec
    limits: AdmissionLimits
    max_model_len: int
    max_body_bytes: int
    max_body_seconds: float
    vocab_size: int
    metrics: ServerMetrics
    rate: FinishRate
    clock: Callable[[], float]

    @property
    def body_limits(self) -> tuple[int, float]:
        """Bytes and seconds that a request's body may take."""
        return self.max_body_bytes, self.max_body_seconds

    def submit_for(self, body: GenerationBody, id: str, prompt: list[int], limit: int | None) -> Submit:  # noqa: A002
        """Check lengths and fill in defaults; `limit` None asks for all that fits. Raises ApiError 400."""
        room = self.max_model_len - len(prompt)
        if not prompt:
            raise bad_request("the prompt has no tokens", body.PROMPT_FIELD)
        if room < 1 or (limit is not None and limit > room):
            wanted = f" and {limit} were asked for as an answer" if limit is not None else ""
            raise bad_request(
                f"the prompt has {len(prompt)} tokens{wanted}; prompt and answer together may have "
                f"{self.max_model_len} tokens",
                "max_tokens" if room > 0 else body.PROMPT_FIELD,
                code="context_length_exceeded",
            )
        outside = next((token for token in prompt if token >= self.vocab_size), None)
        if outside is not None:
            raise bad_request(f"token {outside} is outside the vocabulary of {self.vocab_size}", body.PROMPT_FIELD)
        if body.n > self.limits.places:
            raise bad_request(f"n is {body.n}; at most {self.limits.places} answers may be open on this server", "n")
        defaults = self.codec.defaults
        return Submit(
            request=id,
            prompt=prompt,
            max_tokens=room if limit is None else limit,
            sampling=Sampling(
                temperature=defaults.temperature if body.temperature is None else body.temperature,
                top_p=defaults.top_p if body.top_p is None else body.top_p,
                top_k=max(0, defaults.top_k if body.top_k is None else body.top_k),
                seed=(secrets.randbits(32) if body.seed is None else body.seed) & SEED_MASK,
            ),
            stop_tokens=[] if body.ignore_eos else list(defaults.stop_tokens),
            n=body.n,
            priority=body.priority,
            cache_salt=body.cache_salt or "",
        )

    def admit(self, prompt_tokens: int, answers: int) -> None:
        """Raises ApiError 503 with a time to come back when too much is open."""
        load = Load(self.client.open_answers, self.client.unanswered_prompt_tokens)
        rejection = reject(load, self.limits, prompt_tokens, answers)
        if rejection is not None:
            self.metrics.rejections.labels(reason=rejection.reason).inc()
            after = self.rate.retry_after_seconds(self.clock())
            raise unavailable(rejection.message, "overloaded", after)

    async def pieces(self, submit: Submit, stops: Sequence[str], arrived: float) -> AsyncGenerator[Piece, None]:
        """The answers piece by piece; raises ApiError, and then none of them goes on. Closing it early frees the
        request's pages at the next step."""
        rest, generated = FinishReason.CANCELLED, 0
        ended: list[FinishReason] = []
        self.metrics.prompt_tokens.inc(len(submit.prompt))
        try:
            async with aclosing(self._pieces(submit, stops, arrived)) as pieces:
                async for piece in pieces:
                    generated = piece.tokens
                    if piece.finish is not None:
                        ended.append(piece.finish)
                        self._ended(piece.finish)
                    yield piece
        except RequestError as error:
            rest = FinishReason.ERROR
            raise _as_api_error(error) from error
        finally:
            for _ in range(submit.n - len(ended)):
                ended.append(rest)
                self._ended(rest)
            fields = {
                "request": submit.request,
                "prompt_tokens": len(submit.prompt),
                "generated_tokens": generated,
                "finish": ",".join(reason.value for reason in ended),
                "seconds": round(self.clock() - arrived, 3),
            }
            logger("server").info("request", extra=fields)

    def _ended(self, reason: FinishReason) -> None:
        self.metrics.finished.labels(reason=reason.value).inc()
        self.rate.finished(self.clock())

    async def _pieces(self, submit: Submit, stops: Sequence[str], arrived: float) -> AsyncGenerator[Piece, None]:
        answers = [_Answer(Detokeniser(self.codec.decode, submit.prompt), StopStrings(stops)) for _ in range(submit.n)]
        count = 0
        async with aclosing(self.client.generate(submit)) as tokens:
            async for token in tokens:
                answer = answers[token.index]
                self._observe(answer, None if count else arrived)
                count += 1
                certain, finish = answer.push(token)
                if finish is not None and token.finish is None:
                    self.client.end_answer(submit.request, token.index)
                if certain or finish is not None:
                    yield Piece(token.index, certain, count, finish)

    def _observe(self, answer: _Answer, arrived: float | None) -> None:
        """Count a token of `answer`; `arrived` is when the request came, given with the first token of all."""
        now = self.clock()
        if arrived is not None:
            self.metrics.first_token_seconds.observe(now - arrived)
        elif answer.last is not None:
            self.metrics.inter_token_seconds.observe(now - answer.last)
        self.metrics.generation_tokens.inc()
        answer.last = now


def _as_api_error(error: RequestError) -> ApiError:
    if error.code == ENGINE_DEAD:
        return engine_gone(error.message)
    if error.code == ENGINE_STALLED:
        return unavailable(error.message, error.code, retry_after_seconds=5)
    if error.code == DRAIN_DEADLINE:
        return unavailable(error.message, error.code, retry_after_seconds=1)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, error.message, error.code, should_retry=error.retryable)
