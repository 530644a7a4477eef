"""Response bodies in OpenAI's shapes: one writer for chat and one for plain completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

Json = dict[str, object]


@dataclass(frozen=True)
class Usage:
    """Tokens of one request: the prompt's once, and those of all answers."""

    prompt_tokens: int
    completion_tokens: int

    def body(self) -> Json:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True)
class Answer:
    """One of a request's answers, complete."""

    text: str
    finish: str


@dataclass(frozen=True)
class AnswerWriter(ABC):
    """Writes the bodies of one request's answers, which OpenAI calls choices."""

    id: str
    model: str
    created: int
    """Unix seconds."""

    def chunk(self, index: int, text: str | None, finish: str | None = None, *, first: bool = False) -> Json:
        """One chunk of a stream, about answer `index`."""
        choice = {**self._delta(text, first=first), "index": index, "finish_reason": finish, "logprobs": None}
        return {**self._envelope(stream=True), "choices": [choice]}

    def usage_chunk(self, usage: Usage) -> Json:
        """The last chunk of a stream that was asked to count."""
        return {**self._envelope(stream=True), "choices": [], "usage": usage.body()}

    def whole(self, answers: Sequence[Answer], usage: Usage) -> Json:
        """All answers in one piece."""
        choices = [
            {**self._message(answer.text), "index": index, "finish_reason": answer.finish, "logprobs": None}
            for index, answer in enumerate(answers)
        ]
        return {**self._envelope(stream=False), "choices": choices, "usage": usage.body()}

    def _envelope(self, *, stream: bool) -> Json:
        return {"id": self.id, "object": self._object(stream=stream), "created": self.created, "model": self.model}

    @abstractmethod
    def _object(self, *, stream: bool) -> str: ...

    @abstractmethod
    def _delta(self, text: str | None, *, first: bool) -> Json: ...

    @abstractmethod
    def _message(self, text: str) -> Json: ...


class ChatWriter(AnswerWriter):
    """Bodies of /v1/chat/completions."""

    def _object(self, *, stream: bool) -> str:
        return "chat.completion.chunk" if stream else "chat.completion"

    def _delta(self, text: str | None, *, first: bool) -> Json:
        role: Json = {"role": "assistant"} if first else {}
        return {"delta": role if text is None else {**role, "content": text}}

    def _message(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}


class CompletionWriter(AnswerWriter):
    """Bodies of /v1/completions."""

    def _object(self, *, stream: bool) -> str:
        return "text_completion"

    def _delta(self, text: str | None, *, first: bool) -> Json:
        return {"text": text or ""}

    def _message(self, text: str) -> Json:
        return {"text": text}
