"""The tokeniser: byte-level BPE with 2,048 entries, digits one by one, and a ChatML template."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .recipe import END_OF_TEXT, SPECIAL_TOKENS, TURN_END, ModelShape

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's split: words with their leading space, every digit alone (codes are then copied digit by digit)."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def train(texts: Iterable[str], vocab_size: int = ModelShape.vocab_size) -> Tokenizer:
    """Learn the merges from ``texts``; deterministic for the same texts and library version."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must be there; raises KeyError."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(token)
    return found


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Lower-case words of four letters and more that are one token with their leading space, sorted."""
    marked = (token for token in tokenizer.get_vocab() if token.startswith("\u0120"))
    words = (token[1:] for token in marked)
    return sorted(w for w in words if len(w) >= 4 and w.isascii() and w.isalpha() and w.islower())


def tokenizer_config() -> dict[str, object]:
    """Contents of ``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": ModelShape.max_position_embeddings,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
