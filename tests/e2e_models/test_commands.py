"""``python -m e2e.models``: mistakes end in one line that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.models import __main__ as commands
from e2e.models.recipe import PINNED_SHA256


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--workers", "3"], "--workers 3: from 1 to 2"),
        (["train", "--minutes", "0"], "--minutes 0: needs to be above 0"),
        (["evaluate", "/nowhere"], "/nowhere holds no tokenizer.json"),
        (["evaluate", "--needles", "0"], "--needles 0: needs to be at least 1"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_value(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_verify_accepts_the_committed_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["verify"]) == 0
    assert capsys.readouterr().out.count("ok ") == len(PINNED_SHA256)


def test_verify_names_a_file_whose_bytes_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({}), encoding="utf-8")
    monkeypatch.setattr(commands, "CHECKPOINT_DIR", tmp_path)
    assert commands.main(["verify"]) == 1
    out = capsys.readouterr().out
    assert "WRONG tokenizer.json" in out
    assert "WRONG model.safetensors  missing" in out
