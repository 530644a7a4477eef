"""`octavo serve`: the operator's flags are understood, and a wrong one is one clear line and exit 3."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from octavo_runtime.cli import serve
from octavo_runtime.cli.main import main
from octavo_runtime.contract.integrity import IntegrityMode
from octavo_runtime.contract.launch import LaunchFlags
from octavo_runtime.contract.precision import ComputeCapability, KvFormat, KvScaling, WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.termination import ExitCode
from octavo_runtime.engine.fault_kinds import DEFAULT_RATE, FaultKind, FaultPlan
from octavo_runtime.engine.messages import Failed
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
    kv_integrity=IntegrityMode.REPORT,
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
        kv_integrity=engine.integrity,
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
    assert (engine.kv_scaling, engine.prefix_cache, engine.faults) == (KvScaling.PER_TENSOR, True, ())
    assert server.unready_after_violations is None


def test_what_the_operator_says_nothing_of_is_left_to_the_default() -> None:
    argv = replace(EVERY_FLAG, kv_integrity=None).to_argv()[1:]
    assert not any("integrity" in flag for flag in argv)
    assert serve.engine_settings(parsed(*argv), FACTS).integrity is IntegrityMode.ENFORCE


def test_flags_of_the_cache_and_its_check_reach_the_settings() -> None:
    args = parsed("/m", "--kv-scale=per-token-head", "--no-prefix-cache", "--unready-after-violations=3")
    engine, server = serve.engine_settings(args, FACTS), serve.serve_settings(args, FACTS)
    assert (engine.kv_scaling, engine.prefix_cache) == (KvScaling.PER_TOKEN_HEAD, False)
    assert server.unready_after_violations == 3


def test_faults_are_injected_at_their_rate_or_the_default_one() -> None:
    flags = [f"--inject-fault={kind}" for kind in FaultKind if kind is not FaultKind.WRONG_ROW]
    args = parsed("/m", *flags, "--inject-fault", "wrong-row:0.25", "--allow-fault-injection")
    plans = serve.engine_settings(args, FACTS).faults
    assert {plan.kind for plan in plans} == set(FaultKind)
    assert plans[-1] == FaultPlan(FaultKind.WRONG_ROW, 0.25)
    assert {plan.rate for plan in plans[:-1]} == {DEFAULT_RATE}
    assert serve.engine_settings(parsed("/m", "--allow-fault-injection"), FACTS).faults == ()


@pytest.mark.parametrize(
    ("flags", "reason", "said"),
    [
        (
            ["--inject-fault=wrong-page"],
            "FaultInjectionNotAllowed",
            "--inject-fault wrong-page makes the KV cache wrong on purpose and ends requests of users; "
            "where that is meant, give --allow-fault-injection too",
        ),
        (
            ["--inject-fault=wrong-page", "--inject-fault=wrong-page:0.5", "--allow-fault-injection"],
            "FaultGivenTwice",
            "--inject-fault wrong-page is given more than once",
        ),
        (
            ["--kv-scale=per-token-head", "--kv-cache-dtype=bf16"],
            "KvScaleWithoutFp8",
            "--kv-scale per-token-head: a BF16 cache has no scales; use --kv-cache-dtype fp8 or auto",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused_with_a_sentence(flags: list[str], reason: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        serve.engine_settings(parsed("/m", *flags), FACTS)
    assert refused.value.reason == reason
    assert said in refused.value.message


def test_an_engine_that_ended_is_no_success(log: Path) -> None:
    """What the server returns becomes the exit code: 1 with the reason on record, or a refusal, which gives 3."""
    died = Failed("EngineDied", "signal 9", refused=False, retryable=True)
    assert serve.engine_ended(died) == ExitCode.FAILED
    assert refusal(log)["reason"] == "EngineDied"
    with pytest.raises(Refused, match="no such device"):
        serve.engine_ended(Failed("X", "no such device", refused=True, retryable=False))


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
        ("--kv-scale=per-row", "argument --kv-scale: invalid choice: 'per-row'"),
        (
            "--inject-fault=rowhammer",
            "there is no fault kind 'rowhammer'; there are: wrong-page, wrong-pair,",
        ),
        ("--inject-fault=wrong-page:0", "the rate of wrong-page must be above 0 and at most 1, got '0'"),
        ("--inject-fault=wrong-page:1.01", "the rate of wrong-page must be above 0 and at most 1, got '1.01'"),
        ("--inject-fault=wrong-page:", "the rate of wrong-page must be above 0 and at most 1, got ''"),
        ("--inject-fault=wrong-page:1e-3", "the rate of wrong-page must be above 0 and at most 1, got '1e-3'"),
        ("--unready-after-violations=0", "argument --unready-after-violations: must be a whole number of at least 1"),
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
