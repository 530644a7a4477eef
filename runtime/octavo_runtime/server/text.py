"""Text in, tokens out and back: the checkpoint's tokenizer, chat template and generation defaults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from octavo_runtime.contract.refused import Refused
from octavo_runtime.server.errors import bad_request

LONG_TEXT_CHARACTERS = 16_384
"""Longer texts are tokenised in a thread: a megabyte takes about a second, which the event loop must not wait for."""


class ChatTemplate(Protocol):
    """What is used of transformers' tokenizers: the chat template and its rendering."""

    chat_template: str | None

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str: ...


@dataclass(frozen=True)
class GenerationDefaults:
    """What generation_config.json says of sampling; applies where a request says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextCodec:
    """Encodes prompts and decodes answers of one model.

    Encoding goes to the `tokenizers` object itself, which threads may share; transformers' wrapper around it may not
    be (it sets truncation on every call).
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: GenerationDefaults

    async def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, special tokens added as the tokenizer's own rules say."""
        return await self._encode(text, add_special_tokens=True)

    async def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation and the opening of the assistant's turn; raises ApiError 400."""
        if self.template.chat_template is None:
            raise bad_request("this model has no chat template; use /v1/completions", "messages")
        return await self._encode(self._render(list(messages)), add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def _render(self, messages: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError

        try:
            return self.template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise bad_request(f"the model's chat template refuses these messages: {error}", "messages") from error
        except Exception as error:  # the template is a program of the checkpoint's and may raise anything
            message = f"the model's chat template fails on these messages: {type(error).__name__}: {error}"
            raise bad_request(message, "messages") from error

    async def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) <= LONG_TEXT_CHARACTERS:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        encoding = await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return encoding.ids


def load_codec(model: Path) -> TextCodec:
    """Read tokenizer and generation config of the checkpoint in `model`; raises Refused.

    Takes seconds (transformers is a large import, though without torch); call it off the event loop.
    """
    if not (model / "tokenizer.json").is_file():
        raise Refused("TokenizerMissing", f"{model} has no tokenizer.json; Octavo serves fast tokenizers only")
    from transformers import PreTrainedTokenizerFast

    try:
        loaded = PreTrainedTokenizerFast.from_pretrained(model, local_files_only=True)
    except Exception as error:  # parsers of others over files of others: their errors have no common class
        files = f"{model / 'tokenizer.json'} with the tokenizer_config.json beside it"
        raise Refused("TokenizerInvalid", f"{files} cannot be loaded: {type(error).__name__}: {error}") from error
    tokenizer: Tokenizer = loaded.backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TextCodec(tokenizer, loaded, _defaults(model, loaded.eos_token_id))


def _defaults(model: Path, tokenizer_eos: int | None) -> GenerationDefaults:
    generation = _read_json(model / "generation_config.json")
    eos = generation.get("eos_token_id", _read_json(model / "config.json").get("eos_token_id"))
    stops = {token for token in (eos if isinstance(eos, list) else [eos]) if isinstance(token, int)}
    if tokenizer_eos is not None:
        stops.add(tokenizer_eos)
    if generation.get("do_sample") is False:
        return GenerationDefaults(temperature=0.0, stop_tokens=tuple(sorted(stops)))
    return GenerationDefaults(
        temperature=_number(generation, "temperature", 1.0),
        top_p=_number(generation, "top_p", 1.0),
        top_k=int(_number(generation, "top_k", 0)),
        stop_tokens=tuple(sorted(stops)),
    )


def _read_json(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused("CheckpointInvalid", f"{path} is not readable JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _number(values: dict[str, object], name: str, default: float) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
