"""Settings that the tiny trained model does not use, against transformers on random weights, and those refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.servable import SERVABLE_ARCHITECTURES
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.load import load_model
from octavo_runtime.models.registry import LOADERS, loader_of
from tests.runtime.models.stepping import CPU, Stepper
from tests.runtime.models.transformers_reference import TransformersReference
from tests.runtime.qwen3_moe_files import Shape, write

LARGEST_DIFFERENCE = 2e-5
"""Logits of size one over 150 tokens of random weights; measured 4e-6."""

VARIANTS: dict[str, tuple[Shape, dict[str, object]]] = {
    "untied head": (Shape(tied=False), {}),
    "weights of chosen experts not renormalised": (Shape(), {"norm_topk_prob": False}),
    "one query head per KV head": (Shape(heads=2), {}),
    "one KV head for all": (Shape(heads=6, kv_heads=1), {}),
    "one expert, always": (Shape(experts=1, top_k=1), {}),
    "every expert": (Shape(experts=4, top_k=4), {}),
    "odd sizes": (Shape(vocab=101, hidden=72, head_dim=10, intermediate=36, layers=1), {}),
    "rotary base in rope_parameters": (Shape(), {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "large epsilon": (Shape(), {"rms_norm_eps": 0.1}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(tmp_path: Path, variant: str) -> None:
    shape, changed = VARIANTS[variant]
    path = write(tmp_path, shape.config(**changed), shape.tensors())
    tokens = torch.randint(shape.vocab, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    stepper = Stepper.load(path, WeightFormat.BF16, KvFormat.BF16)
    sequence = stepper.start()
    prefill = stepper.step({0: (sequence, tokens[:100])}, every=True)[0]
    decoded = [stepper.step({0: (sequence, [token])})[0] for token in tokens[100:]]
    ours = torch.cat((prefill, torch.stack(decoded)))
    theirs = TransformersReference(path, KvFormat.BF16).logits(tokens, stepper.stored(sequence))
    assert float((ours - theirs).abs().max()) < LARGEST_DIFFERENCE


def test_int4_experts_answer_nearly_as_bf16_ones_and_not_equally(tmp_path: Path) -> None:
    shape = Shape()
    path = write(tmp_path, shape.config(), shape.tensors())
    tokens = list(range(shape.vocab))
    answers = []
    for weights in (WeightFormat.BF16, WeightFormat.INT4):
        stepper = Stepper.load(path, weights, KvFormat.FP8)
        answers.append(stepper.step({0: (stepper.start(), tokens)}, every=True)[0].log_softmax(-1))
    divergence = float((answers[0].exp() * (answers[0] - answers[1])).sum(-1).mean())
    assert 1e-5 < divergence < 0.05


REFUSED: dict[str, object] = {
    "hidden_act": "gelu",
    "attention_bias": True,
    "use_sliding_window": True,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [0],
}


def load(path: Path) -> None:
    facts = read_facts(path)
    load_model(path, facts, ParallelLayout.of(facts, 1), WeightFormat.BF16, CPU)


@pytest.mark.parametrize("field", REFUSED)
def test_a_setting_that_would_change_the_computation_is_refused_by_name(tmp_path: Path, field: str) -> None:
    path = write(tmp_path, Shape().config(**{field: REFUSED[field]}), Shape().tensors())
    with pytest.raises(Refused) as caught:
        load(path)
    assert caught.value.reason == "ConfigUnsupported"
    assert f"{field} is {REFUSED[field]!r}" in caught.value.message


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
    ],
)
def test_scaled_positions_are_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(Refused, match="rope_type is") as caught:
        load(write(tmp_path, Shape().config(**changed), Shape().tensors()))
    assert caught.value.reason == "ConfigUnsupported"


@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("value", [0, -1.0, "small", True])
def test_a_number_that_is_none_is_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(Refused, match=f"{field} must be a positive number") as caught:
        load(write(tmp_path, Shape().config(**{field: value}), Shape().tensors()))
    assert caught.value.reason == "ConfigInvalid"


def test_the_contract_names_exactly_the_architectures_there_are() -> None:
    assert set(LOADERS) == SERVABLE_ARCHITECTURES


def test_an_architecture_without_a_model_is_refused_with_the_list() -> None:
    with pytest.raises(Refused, match="it serves Qwen3MoeForCausalLM") as caught:
        loader_of("MixtralForCausalLM")
    assert caught.value.reason == "ArchitectureUnsupported"


def test_facts_of_another_checkpoint_do_not_load(tmp_path: Path) -> None:
    path = write(tmp_path, Shape().config(), Shape().tensors())
    facts: ModelFacts = read_facts(path)
    other = facts.model_copy(update={"vocab_size": facts.vocab_size + 1})
    with pytest.raises(Refused, match=r"model\.embed_tokens\.weight"):
        load_model(path, other, ParallelLayout.of(other, 1), WeightFormat.BF16, CPU)


def test_the_stepper_itself_notices_a_row_that_is_not_clean(tmp_path: Path) -> None:
    path = write(tmp_path, Shape().config(), Shape().tensors())
    stepper = Stepper.load(path, WeightFormat.BF16, KvFormat.BF16)
    sequence = stepper.start()
    stepper.step({0: (sequence, [1, 2, 3])})
    with pytest.raises(AssertionError):
        stepper.step({0: (replace(sequence, binding=1), [4])})
