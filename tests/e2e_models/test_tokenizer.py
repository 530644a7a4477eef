"""The tokeniser and its chat template, as transformers and a chat server read them."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from e2e.models.recipe import CHECKPOINT_DIR, SPECIAL_TOKENS, ModelShape
from e2e.models.vocabulary import single_token_words


@pytest.fixture(scope="module")
def hugging_face_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(CHECKPOINT_DIR)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT_DIR / "tokenizer.json"))


def test_chat_template_renders_every_role_and_opens_the_answer(hugging_face_tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a list?"},
        {"role": "assistant", "content": "A sequence."},
        {"role": "user", "content": "And a set?"},
    ]
    text = hugging_face_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is a list?<|im_end|>\n"
        "<|im_start|>assistant\nA sequence.<|im_end|>\n"
        "<|im_start|>user\nAnd a set?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_rendered_markers_become_the_special_tokens(hugging_face_tokenizer: Any) -> None:
    rendered = hugging_face_tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_dict=True
    )
    start = hugging_face_tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert list(rendered["input_ids"]).count(start) == 2


def test_special_tokens_have_the_first_ids(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert tokenizer.get_vocab_size() == ModelShape.vocab_size


@pytest.mark.parametrize("text", ["def f(x):\n    return x\n", "naïve — 日本語 🙂", " \t\n  ", ""])
def test_any_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_digit_is_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("4821").ids) == 4


def test_words_used_as_keys_are_single_tokens(tokenizer: Tokenizer) -> None:
    words = single_token_words(tokenizer)
    assert len(words) > 100
    assert all(len(tokenizer.encode(f" {word}").ids) == 1 for word in words)
