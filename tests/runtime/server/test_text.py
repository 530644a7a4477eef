"""The checkpoint's tokenizer, chat template and generation defaults, read from files as users have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo_runtime.contract.refused import Refused
from octavo_runtime.server.errors import ApiError
from octavo_runtime.server.text import LONG_TEXT_CHARACTERS, GenerationDefaults, TextCodec, load_codec
from tests.runtime.server.echo import END, byte_tokenizer

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system prompt here') }}"
    "{% endif %}{{ message.role }}: {{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(directory: Path, *, template: str | None = TEMPLATE, generation: object = None) -> Path:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(4)  # as some published tokenizer.json files have it
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (directory / "tokenizer_config.json").write_text(
        json.dumps(config | ({"chat_template": template} if template else {}))
    )
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return load_codec(write_model(tmp_path_factory.mktemp("model")))


async def test_a_prompt_is_encoded_whole_and_comes_back(codec: TextCodec) -> None:
    tokens = await codec.encode("längere Wörter")
    assert len(tokens) == len("längere Wörter".encode())
    assert codec.decode([*tokens, END]) == "längere Wörter"


async def test_a_long_prompt_gives_the_same_tokens_from_a_thread(codec: TextCodec) -> None:
    text = "ab" * LONG_TEXT_CHARACTERS
    assert await codec.encode(text) == 2 * (await codec.encode(text[: len(text) // 2]))


async def test_a_conversation_goes_through_the_models_template(codec: TextCodec) -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "?"},
    ]
    tokens = await codec.encode_chat(turns)
    assert tokens.count(END) == 3, "special tokens of the template are tokens, not text"
    assert codec.decode(tokens) == "user: hiassistant: houser: ?assistant: "


async def test_messages_that_the_template_refuses_are_a_400(codec: TextCodec) -> None:
    with pytest.raises(ApiError, match="no system prompt here") as error:
        await codec.encode_chat([{"role": "system", "content": "x"}])
    assert (error.value.status, error.value.param) == (400, "messages")


async def test_a_model_without_a_template_says_what_to_use(tmp_path: Path) -> None:
    codec = load_codec(write_model(tmp_path, template=None))
    with pytest.raises(ApiError, match="use /v1/completions"):
        await codec.encode_chat([{"role": "user", "content": "x"}])


def test_without_a_generation_config_the_models_stop_token_and_the_tokenizers_end_an_answer(codec: TextCodec) -> None:
    assert codec.defaults == GenerationDefaults(1.0, 1.0, 0, (3, END))


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [5, 6], "temperature": 0.6, "top_p": 0.95, "top_k": 20}, (0.6, 0.95, 20, (5, 6, END))),
        ({"do_sample": False, "temperature": 0.6}, (0.0, 1.0, 0, (3, END))),
        ({"temperature": "hot", "top_k": True}, (1.0, 1.0, 0, (3, END))),
    ],
)
def test_generation_defaults_come_from_the_checkpoint(
    tmp_path: Path, generation: dict[str, object], expected: tuple[float, float, int, tuple[int, ...]]
) -> None:
    assert load_codec(write_model(tmp_path, generation=generation)).defaults == GenerationDefaults(*expected)


def test_a_checkpoint_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"has no tokenizer\.json"):
        load_codec(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (write_model(tmp_path) / name).write_text('{"version": ')
    with pytest.raises(Refused, match=name):
        load_codec(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["[]", "null", '{"eos_token": 3}'])
def test_a_tokenizer_file_of_another_shape_is_refused_by_name(tmp_path: Path, name: str, content: str) -> None:
    (write_model(tmp_path) / name).write_text(content)
    with pytest.raises(Refused, match=name) as error:
        load_codec(tmp_path)
    assert error.value.reason == "TokenizerInvalid"


async def test_messages_that_break_the_template_are_a_400(tmp_path: Path) -> None:
    codec = load_codec(write_model(tmp_path, template="{{ messages[0].content + 1 }}"))
    with pytest.raises(ApiError, match="chat template fails on these messages: TypeError") as error:
        await codec.encode_chat([{"role": "user", "content": "x"}])
    assert (error.value.status, error.value.param) == (400, "messages")
