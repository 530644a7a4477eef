"""ModelFacts and termination reports: closed documents that survive JSON and fit the kubelet's 4 KiB."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from octavo_runtime.contract.facts import AttentionFacts, AttentionKind, CheckpointFormat, ExpertFacts, ModelFacts
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.servable import SERVABLE_ARCHITECTURES, check_servable
from octavo_runtime.contract.termination import MESSAGE_LIMIT, Refusal, TerminationReport, report_of
from tests.contract.models import KIMI_K26, MIXTRAL, PUBLISHED, QWEN3_30B

LIMIT_BYTES = 4096


@pytest.mark.parametrize("facts", PUBLISHED, ids=lambda facts: facts.architecture)
def test_facts_survive_json_in_camel_case(facts: ModelFacts) -> None:
    text = facts.model_dump_json(by_alias=True, exclude_none=True)
    assert "hiddenSize" in text
    assert "hidden_size" not in text
    assert ModelFacts.model_validate_json(text) == facts


def test_the_largest_facts_fit_a_termination_message() -> None:
    largest = KIMI_K26.model_copy(update={"architecture": "A" * 128, "revision": "r" * 128})
    assert len(TerminationReport(facts=largest).to_json().encode()) < LIMIT_BYTES / 2


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 0},
        {"layers": -1},
        {"hiddenSize": "wide"},
        {"vocabSize": 2**40},
        {"architecture": ""},
        {"architecture": "A" * 129},
        {"format": "INT3"},
        {"checkpointBytes": -1},
        {"unknownField": 1},
        {"experts": {"count": 4, "perToken": 8, "intermediateSize": 1, "layers": 1}},
        {"attention": {"kind": "MLA", "heads": 1, "kvHeads": 1, "headDim": 1}},
        {"attention": {"kind": "GQA", "heads": 5, "kvHeads": 2, "headDim": 1}},
    ],
)
def test_facts_that_cannot_be_are_rejected(change: dict[str, object]) -> None:
    document = json.loads(QWEN3_30B.model_dump_json(by_alias=True)) | change
    with pytest.raises(ValidationError):
        ModelFacts.model_validate(document)


def test_facts_are_frozen() -> None:
    with pytest.raises(ValidationError):
        QWEN3_30B.layers = 1


def test_the_impossible_is_named_in_the_users_words() -> None:
    with pytest.raises(ValidationError, match=r"experts\.perToken 3 exceeds experts\.count 2"):
        ExpertFacts(count=2, per_token=3, intermediate_size=1, layers=1)
    with pytest.raises(ValidationError, match="needs kvLoraRank and qkRopeHeadDim"):
        AttentionFacts(kind=AttentionKind.MLA, heads=1, kv_heads=1, head_dim=1)


def test_a_report_holds_either_facts_or_a_refusal() -> None:
    refusal = Refusal(reason="SourceNotFound", message="gone")
    with pytest.raises(ValidationError):
        TerminationReport()
    with pytest.raises(ValidationError):
        TerminationReport(facts=QWEN3_30B, refusal=refusal)
    assert TerminationReport.parse(TerminationReport(refusal=refusal).to_json()) == TerminationReport(refusal=refusal)


@pytest.mark.parametrize("letter", ["x", "ä", "\U0001f600", "\x00", "\ud800", '"', "\\"])
def test_the_longest_refusal_fits_whatever_its_letters(letter: str) -> None:
    report = report_of(Refused("CheckpointCorrupt", letter * 10_000, retryable=True))
    text = report.to_json()

    assert len(text.encode()) <= LIMIT_BYTES
    assert TerminationReport.parse(text) == report
    assert report.refusal is not None
    assert len(report.refusal.message) > 500
    assert len(report.refusal.message) <= MESSAGE_LIMIT


@pytest.mark.parametrize(
    "text", ["", "Killed", "Traceback (most recent call last):", "{}", "[1]", '{"facts": 1}', "null"]
)
def test_other_last_words_are_not_taken_for_reports(text: str) -> None:
    assert TerminationReport.parse(text) is None


@pytest.mark.parametrize("reason", ["", "no", "lower", "With Space", "X" * 65])
def test_reasons_are_camel_case(reason: str) -> None:
    with pytest.raises(ValidationError):
        Refusal(reason=reason, message="x")


def test_servable_are_exactly_the_models_that_the_runtime_implements() -> None:
    from octavo_runtime.models.registry import LOADERS

    assert set(LOADERS) == SERVABLE_ARCHITECTURES


def test_what_is_not_served_is_refused_with_what_is() -> None:
    check_servable(QWEN3_30B)
    with pytest.raises(Refused, match="it serves Qwen3MoeForCausalLM") as refusal:
        check_servable(MIXTRAL.model_copy(update={"architecture": "KimiK25ForConditionalGeneration"}))
    assert refusal.value.reason == "ArchitectureUnsupported"
    with pytest.raises(Refused, match="dense model") as refusal:
        check_servable(QWEN3_30B.model_copy(update={"experts": None}))
    assert refusal.value.reason == "NotMixtureOfExperts"
    with pytest.raises(Refused, match="stored as INT4") as refusal:
        check_servable(QWEN3_30B.model_copy(update={"format": CheckpointFormat.INT4, "group_size": 32}))
    assert refusal.value.reason == "CheckpointFormatUnsupported"
