"""`octavo inspect` as a person and as a pod runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_runtime.cli.main import TERMINATION_LOG_VARIABLE, main
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.termination import ExitCode, TerminationReport
from tests.checkpoints import write_checkpoint
from tests.published_models import glm_52_bf16, gqa_config, gqa_tensors


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setenv(TERMINATION_LOG_VARIABLE, str(path))
    return path


def _report(log: Path) -> TerminationReport:
    report = TerminationReport.parse(log.read_text())
    assert report is not None
    return report


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    config = gqa_config("Qwen3MoeForCausalLM", num_hidden_layers=2)
    return write_checkpoint(tmp_path / "qwen", config, gqa_tensors(config))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    config = gqa_config("LlamaForCausalLM", num_hidden_layers=2, intermediate_size=512, num_experts=None)
    return write_checkpoint(tmp_path / "llama", config, gqa_tensors(config))


def test_json_and_last_word_hold_the_same_facts(qwen: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", "--servable", str(qwen)]) == ExitCode.OK

    printed = ModelFacts.model_validate_json(capsys.readouterr().out)
    assert printed.architecture == "Qwen3MoeForCausalLM"
    assert _report(log).facts == printed


def test_a_refusal_is_one_line_and_the_last_word(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(tmp_path / "nowhere")]) == ExitCode.REFUSED

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("octavo inspect: SourceNotFound: ")
    refusal = _report(log).refusal
    assert refusal is not None
    assert refusal.reason == "SourceNotFound"


def test_a_dense_model_is_described_and_refused_only_when_it_must_be_servable(
    llama: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(llama)]) == ExitCode.OK
    assert "no: LlamaForCausalLM is a dense model" in capsys.readouterr().out

    assert main(["inspect", "--json", "--servable", str(llama)]) == ExitCode.REFUSED
    assert json.loads(capsys.readouterr().out)["architecture"] == "LlamaForCausalLM"
    refusal = _report(log).refusal
    assert refusal is not None
    assert refusal.reason == "NotMixtureOfExperts"


def test_a_model_that_only_other_runtimes_serve_is_refused_with_the_served_ones(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_checkpoint(tmp_path / "glm", *glm_52_bf16())
    assert main(["inspect", "--servable", str(directory)]) == ExitCode.REFUSED

    refusal = _report(log).refusal
    assert refusal is not None
    assert refusal.reason == "ArchitectureUnsupported"
    assert "it serves " in refusal.message
    assert "Qwen3MoeForCausalLM" in refusal.message


def test_the_sheet_says_what_a_person_wants_to_know(qwen: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(qwen)]) == ExitCode.OK

    sheet = capsys.readouterr().out
    assert "128, 8 per token, 768 wide, in 2 layers" in sheet
    assert "BF16 4,096 B, FP8 2,048 B" in sheet
    assert "INT4 (converted)" in sheet
    assert max(map(len, sheet.splitlines())) <= 100


def test_inspecting_a_directory_imports_neither_torch_nor_the_hub_client(qwen: Path) -> None:
    program = (
        "import sys; from octavo_runtime.cli.main import main; main(['inspect', sys.argv[1]]);"
        "print([name for name in ('torch', 'huggingface_hub', 'transformers', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(qwen)], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
