"""`octavo serve`: the operator's flags are understood, and a wrong one is one clear line and exit 3."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from octavo_runtime.cli import serve
from octavo_runtime.cli.main import main
from octavo_runtime.contract.launch import LaunchFlags
from octavo_runtime.contract.precision import ComputeCapability, KvFormat, WeightFormat
from octavo_runtime.contract.termination import ExitCode
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.server.run import bind
from tests.checkpoints import write_checkpoint
from tests.published_models import gqa_config, gqa_tensors
from tests.runtime.server.echo import FACTS

EVERY_FLAG = LaunchFlags(
    model="/models/m",
    served_model_name="m",
    weights=WeightFormat.INT4,
    kv_cache_dtype=KvFormat.FP8,
    max_model_len=2048,
    max_num_seqs=7,
    kv_cache_memory_bytes=123_456_789,
    page_size=32,
    tensor_parallel_size=1,
    drain_seconds=33,
    expect_compute_capability=ComputeCapability(9, 0),
    expect_memory_mib=143_771,
    port=8123,
)


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(argv)


def test_what_the_operator_writes_is_read_back_whole() -> None:
    command, *argv = EVERY_FLAG.to_argv()
    args = parsed(*argv)
    engine, server = serve.engine_settings(args, FACTS), serve.serve_settings(args, FACTS)
    read_back = LaunchFlags(
        model=str(engine.model),
        served_model_name=server.served_model,
        weights=engine.weights or WeightFormat.BF16,
        kv_cache_dtype=engine.kv_cache or KvFormat.BF16,
        max_model_len=engine.max_model_len or 0,
        max_num_seqs=engine.max_num_seqs,
        kv_cache_memory_bytes=engine.kv_cache_memory_bytes or 0,
        page_size=engine.page_size,
        tensor_parallel_size=engine.tensor_parallel_size,
        drain_seconds=int(server.drain_seconds),
        expect_compute_capability=engine.expect_compute_capability,
        expect_memory_mib=engine.expect_memory_mib,
        port=server.port,
    )
    assert command == "serve"
    assert read_back == EVERY_FLAG
    defaults = LaunchFlags("", "", WeightFormat.BF16, KvFormat.BF16, 1, 1, 1)
    same = [f.name for f in fields(LaunchFlags) if getattr(EVERY_FLAG, f.name) == getattr(defaults, f.name)]
    assert same == ["tensor_parallel_size"], "a flag at its default proves nothing"


def test_by_hand_everything_but_the_path_has_a_default() -> None:
    args = parsed("/models/tiny-moe")
    engine, server = serve.engine_settings(args, FACTS), serve.serve_settings(args, FACTS)
    assert (server.served_model, server.host, server.port) == ("tiny-moe", "0.0.0.0", 8000)
    assert (engine.weights, engine.kv_cache, engine.max_model_len, engine.kv_cache_memory_bytes) == (None,) * 4
    assert (engine.max_num_seqs, server.max_num_seqs, engine.integrity) == (32, 32, IntegrityMode.ENFORCE)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--page-size=8", "argument --page-size: must be 16 to 128 tokens, got '8'"),
        ("--max-num-seqs=0", "argument --max-num-seqs: must be a whole number of at least 1, got '0'"),
        ("--max-model-len=1e4", "argument --max-model-len: must be a whole number of at least 1, got '1e4'"),
        ("--kv-cache-memory-bytes=-5", "argument --kv-cache-memory-bytes: must be a whole number of at least 1"),
        ("--weights=int8", "argument --weights: invalid choice: 'int8'"),
        ("--expect-compute-capability=hopper", "compute capability must look like 9.0, got 'hopper'"),
        ("--port=70000", "argument --port: must be 1 to 65535, got '70000'"),
        ("--drain-seconds=soon", "argument --drain-seconds: must be seconds, such as 5 or 0.5, got 'soon'"),
        ("--banana", "unrecognized arguments: --banana"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(flag: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/models/m", flag]) == ExitCode.REFUSED
    error = capsys.readouterr().err
    assert error.startswith("octavo serve: FlagInvalid: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setenv("OCTAVO_TERMINATION_LOG", str(path))
    monkeypatch.setattr(serve, "prepare_environment", lambda _environment: None)
    return path


def refusal(path: Path) -> dict[str, object]:
    report: dict[str, dict[str, object]] = json.loads(path.read_text())
    return report["refusal"]


def test_a_path_that_is_no_checkpoint_leaves_its_reason_in_the_termination_log(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "/nowhere"]) == ExitCode.REFUSED
    assert "no such directory: /nowhere" in capsys.readouterr().err.splitlines()[-1]
    assert refusal(log)["reason"] == "SourceNotFound"


def test_a_port_in_use_is_refused_before_anything_is_loaded(log: Path, tmp_path: Path) -> None:
    config = gqa_config("Qwen3MoeForCausalLM", num_hidden_layers=1, hidden_size=32, vocab_size=64, num_experts=4)
    config |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16, "num_attention_heads": 2}
    config |= {"num_key_value_heads": 1}
    path = write_checkpoint(tmp_path / "model", config, gqa_tensors(config))
    taken = bind("127.0.0.1", 0)
    try:
        port = taken.getsockname()[1]
        assert main(["serve", str(path), "--host=127.0.0.1", f"--port={port}"]) == ExitCode.REFUSED
    finally:
        taken.close()
    assert refusal(log)["reason"] == "AddressUnavailable"
    assert str(port) in str(refusal(log)["message"])


def test_nothing_is_downloaded_at_serve_time_and_caches_go_where_they_may() -> None:
    environment = {"XDG_CACHE_HOME": "/cache"}
    serve.prepare_environment(environment)
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["HF_HOME"] == "/cache/huggingface"
    assert environment["TRITON_CACHE_DIR"] == "/cache/triton"
    assert "TMPDIR" not in environment


def test_temporary_files_go_to_the_cache_when_nothing_else_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    serve.prepare_environment(environment)
    assert environment["TMPDIR"] == str(tmp_path / "tmp")
    assert os.access(environment["TMPDIR"], os.W_OK)
