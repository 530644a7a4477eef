"""The checkpoint is trained well enough that quantisation damage can be measured on it."""

from __future__ import annotations

import math

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from e2e.models import checkpoint
from e2e.models.evaluate import answer, damage, mean_loss, needles, recall_rate, validation_windows
from e2e.models.model import TinyMoe
from e2e.models.quantise import with_int4_experts
from e2e.models.recipe import CHECKPOINT_DIR


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def model() -> TinyMoe:
    return checkpoint.load(CHECKPOINT_DIR)


@pytest.fixture(scope="module")
def windows(tokenizer: Tokenizer) -> list[Tensor]:
    """Every sixth window: about 4,500 tokens from all over the held-out prose."""
    return validation_windows(CHECKPOINT_DIR, tokenizer)[::6]


def test_held_out_prose_is_predicted_well(model: TinyMoe, windows: list[Tensor]) -> None:
    assert math.exp(mean_loss(model, windows)) < 25


def test_coarser_int4_groups_do_more_damage(model: TinyMoe, windows: list[Tensor]) -> None:
    fine = damage(model, with_int4_experts(model, 32), windows)
    coarse = damage(model, with_int4_experts(model, 128), windows)
    assert 0 < fine.kl_nats < coarse.kl_nats < 0.1
    assert 0.5 < coarse.top1_agreement < fine.top1_agreement < 1


def test_an_unchanged_model_shows_no_damage(model: TinyMoe, windows: list[Tensor]) -> None:
    same = damage(model, model, windows[:2])
    assert same.kl_nats == pytest.approx(0, abs=1e-6)
    assert same.top1_agreement == 1


def test_int4_touches_the_experts_and_nothing_else(model: TinyMoe) -> None:
    quantised = dict(with_int4_experts(model, 32).named_parameters())
    changed = {name for name, before in model.named_parameters() if not torch.equal(before, quantised[name])}
    assert changed == {name for name, _ in model.named_parameters() if ".experts." in name}


@pytest.mark.parametrize("chat", [False, True])
def test_needle_prompts_have_the_asked_length_and_hold_the_fact_once(tokenizer: Tokenizer, chat: bool) -> None:
    prose = tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 100).ids
    for needle in needles(tokenizer, prose, 512, 4, chat=chat):
        text = tokenizer.decode(list(needle.prompt), skip_special_tokens=False)
        code = tokenizer.decode(list(needle.answer))
        assert len(needle.prompt) == 512
        assert text.count(f"is{code}.") == 1
        assert text.endswith(" is")


def test_a_code_in_a_short_context_is_recalled(model: TinyMoe, tokenizer: Tokenizer, windows: list[Tensor]) -> None:
    prose = [i for window in windows for i in window.tolist()]
    prompts = needles(tokenizer, prose, 128, 12, chat=True)
    assert recall_rate(model, prompts) >= 0.5


@pytest.mark.parametrize("question", ["What does the json module do?", "How do I open a file?"])
def test_a_chat_answer_comes_to_an_end(model: TinyMoe, tokenizer: Tokenizer, question: str) -> None:
    text = answer(model, tokenizer, question, max_tokens=100)
    assert text.endswith("<|im_end|>")
    assert len(text.split()) > 4
