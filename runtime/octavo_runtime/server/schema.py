"""Request bodies: closed models. What is not implemented is refused with its name, never ignored.

OpenAI fields that Octavo does not implement are let through only with the value that asks for nothing (`NEUTRAL`
of each body).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from octavo_runtime.server.errors import bad_request

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_MESSAGES = 4096
MAX_SHOWN_CHARACTERS = 80
MAX_ANSWERS = 16
MAX_SALT_CHARACTERS = 128
MOST_URGENT, LEAST_URGENT = -10, 10

OBJECT_LEVELS = 3
"""Objects within each other: body, message, part. In all of them null means the same as leaving the field out."""

Neutral = Mapping[str, tuple[object, ...]]
"""Fields that OpenAI or vLLM knows and Octavo does not implement, and the values of each that ask for nothing."""

NEUTRAL_ANYWHERE: Neutral = {
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
}

FORMS: Mapping[str, str] = {
    "stop": f"a string or a list of at most {MAX_STOP_STRINGS} strings, each of 1 to {MAX_STOP_CHARACTERS} characters",
    "content": 'a string or a list of parts {"type": "text", "text": "..."}; images, audio and files are not supported',
    "prompt": "a string, a list of token ids or a list of one string",
}
"""What the fields accept that have more than one form. Pydantic reports such a field once for each form."""

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class Body(BaseModel):
    """Closed and strict: "5" is not a number here."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(Body):
    """How a stream ends."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class GenerationBody(Body):
    """Fields of both endpoints."""

    PROMPT_FIELD: ClassVar[str]
    """Which field holds the prompt, for errors about it."""
    NEUTRAL: ClassVar[Neutral]
    """Fields that are let through with these values only."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """The k most likely tokens; 0 and -1 keep all."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOP_STRINGS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] = 1
    """Answers to the one prompt; answer `i` draws with `seed` + i."""
    priority: Annotated[int, Field(ge=MOST_URGENT, le=LEAST_URGENT)] = 0
    """vLLM's: lower goes first."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None
    """vLLM's: cached prefixes are shared only among requests with the same salt."""
    ignore_eos: bool = False
    """Go on to max_tokens whatever the model says; for measurements."""
    user: Annotated[str, Field(max_length=512)] | None = None
    """Accepted and unused."""

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, perhaps none."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(Body):
    """One part of a message; text is the only kind."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One turn. OpenAI's `name` is refused: most templates drop it, and the model would mix the speakers up."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        """What chat templates expect: role and one string. They know `developer` by its older name, `system`."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(GenerationBody):
    """Body of /v1/chat/completions."""

    PROMPT_FIELD = "messages"
    NEUTRAL = {
        **NEUTRAL_ANYWHERE,
        "logprobs": (False,),
        "top_logprobs": (0,),
        "store": (False,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "modalities": (["text"],),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if None not in {self.max_tokens, self.max_completion_tokens} and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    @property
    def limit(self) -> int | None:
        """Tokens of the answer, when given."""
        return self.max_completion_tokens or self.max_tokens


class CompletionBody(GenerationBody):
    """Body of /v1/completions."""

    PROMPT_FIELD = "prompt"
    NEUTRAL = {**NEUTRAL_ANYWHERE, "echo": (False,), "suffix": ("",)}
    """Without `logprobs`, a number here: 0 still asks for those of the tokens of the answer."""

    prompt: (
        str
        | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=1)]
    )

    @property
    def only_prompt(self) -> str | list[int]:
        """The prompt, out of its list when it came in one."""
        if isinstance(self.prompt, str):
            return self.prompt
        first = self.prompt[0]
        return first if isinstance(first, str) else [token for token in self.prompt if isinstance(token, int)]


BodyT = TypeVar("BodyT", bound=GenerationBody)


def parse_body(model: type[BodyT], value: object) -> BodyT:
    """Validate a decoded JSON document; raises ApiError 400 naming the first field that is wrong."""
    if not isinstance(value, dict):
        raise bad_request("the request body must be a JSON object", None)
    asked = _without_nulls(value, OBJECT_LEVELS)
    for name in [name for name in asked if name in model.NEUTRAL]:
        given = asked.pop(name)
        if not any(_same(given, neutral) for neutral in model.NEUTRAL[name]):
            raise bad_request(
                f"{name} is not supported by this server; leave it out", name, code="unsupported_parameter"
            )
    try:
        return model.model_validate(asked)
    except ValidationError as error:
        raise _named(error, asked) from None


def _same(given: object, neutral: object) -> bool:
    """Equality of JSON values, which Python's is but for true and 1, false and 0."""
    return isinstance(given, bool) is isinstance(neutral, bool) and given == neutral


def _without_nulls(fields: Mapping[str, object], levels: int) -> dict[str, object]:
    """`fields` without those that are null, in the objects of its lists too, `levels` objects deep."""
    kept = {name: value for name, value in fields.items() if value is not None}
    if levels > 1:
        for name, value in kept.items():
            if isinstance(value, dict):
                kept[name] = _without_nulls(value, levels - 1)
            elif isinstance(value, list):
                kept[name] = [_without_nulls(item, levels - 1) if isinstance(item, dict) else item for item in value]
    return kept


def _named(error: ValidationError, asked: Mapping[str, object]) -> Exception:
    first = error.errors(include_url=False, include_context=False)[0]
    location = first["loc"]
    # Behind a field with several forms a location goes on with pydantic's names for them, which nobody sent.
    field = next((part for part in location[:-1] if part in FORMS), None)
    if field is not None:
        location = location[: location.index(field) + 1]
    path = ".".join(str(part) for part in location)
    if field is not None:
        given: Any = reduce(getitem, location, cast(Any, asked))
        return bad_request(f"{path} must be {FORMS[str(field)]}{_got(given)}", path)
    if first["type"] == "extra_forbidden":
        return bad_request(f"{path} is not supported by this server; leave it out", path, code="unsupported_parameter")
    found = "" if first["type"] == "missing" else _got(first["input"])
    message = first["msg"].removeprefix("Value error, ")
    return bad_request(f"{path}: {message}{found}" if path else message, path or None)


def _got(value: object) -> str:
    """A value for the end of a message, unless it is long."""
    shown = repr(value)
    return "" if len(shown) > MAX_SHOWN_CHARACTERS else f", got {shown}"
