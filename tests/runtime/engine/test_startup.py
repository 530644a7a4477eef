"""From settings to a warm engine, on a checkpoint whose weights are all zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo_kernels.catalogue import Operations
from octavo_runtime.contract.precision import ComputeCapability, KvFormat, KvScaling, WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.engine import startup
from octavo_runtime.engine.device import DeviceFacts, check_expected, probe
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.messages import FinishReason, Sampling, Submit
from octavo_runtime.engine.settings import EngineSettings
from octavo_runtime.loading.facts import read_facts
from tests.checkpoints import write_checkpoint
from tests.published_models import gqa_config, gqa_tensors

CONFIG = gqa_config(
    "Qwen3MoeForCausalLM",
    num_hidden_layers=1,
    hidden_size=32,
    vocab_size=64,
    max_position_embeddings=512,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    hidden_act="silu",
    norm_topk_prob=True,
)
GPU = DeviceFacts("cuda:0", "an H200", ComputeCapability(9, 0), 143_156 << 20, 140_000 << 20)
PLAIN_CPU = DeviceFacts("cpu", "CPU", None, 64 << 30, 32 << 30)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = [*gqa_tensors(CONFIG)]
    tensors += [(f"model.layers.0.{name}.weight", "BF16", (size,)) for name, size in NORMS]
    return write_checkpoint(tmp_path_factory.mktemp("zero"), CONFIG, tensors)


NORMS = [("post_attention_layernorm", 32), ("self_attn.q_norm", 16), ("self_attn.k_norm", 16)]


@pytest.fixture
def settings(checkpoint: Path) -> EngineSettings:
    return EngineSettings(model=checkpoint, facts=read_facts(checkpoint), max_num_seqs=2, tokens_per_step=64)


def silent(_stage: str, _detail: str) -> None:
    """Nobody reads the progress."""


def test_an_engine_starts_warm_and_answers(settings: EngineSettings) -> None:
    stages: list[str] = []
    engine, started = startup.start_engine(settings, lambda stage, _detail: stages.append(stage))
    assert list(dict.fromkeys(stages)) == ["device", "precision", "kv", "kernels", "load", "warm"]
    assert (started.weights, started.kv_cache) == ("INT4", "FP8")
    assert engine.idle
    assert engine.stats().steps > 0
    engine.submit(Submit("r", [1, 2], 3, Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0), []))
    tokens = [token for _ in range(3) for token in engine.step().tokens]
    assert [token.token for token in tokens] == [0, 0, 0]
    assert tokens[-1].finish is FinishReason.LENGTH
    assert {kernel.operation: kernel.implementation for kernel in started.kernels}["paged_attention"] == "cpu"


@pytest.mark.parametrize("change", [{"pad_decode_to": (2, 4)}, {"prefix_cache": False}, {"digest_pages_per_step": 3}])
@pytest.mark.parametrize("reference", [False, True])
def test_an_engine_answers_with_each_option(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reference: bool
) -> None:
    if reference:
        monkeypatch.setattr("octavo_kernels.cpu.library.why_unavailable", lambda: "there is no C compiler")
    engine, _ = startup.start_engine(replace(settings, allow_reference=reference, **change), silent)
    greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
    for name in "ab":
        engine.submit(Submit(name, [1] * 70, 4, greedy, []))
        while not engine.idle:
            assert not engine.step().violations
    stats = engine.stats()
    assert stats.prefix_hit_tokens == (64 if settings.prefix_cache and "prefix_cache" not in change else 0)
    assert not stats.integrity_stalled


@pytest.mark.parametrize("scaling", KvScaling)
def test_scales_beside_the_pages_are_counted_and_run(settings: EngineSettings, scaling: KvScaling) -> None:
    asked = replace(settings, kv_cache=KvFormat.FP8, kv_scaling=scaling, kv_cache_memory_bytes=200_000)
    engine, started = startup.start_engine(asked, silent)
    kv = next(line for line in started.memory if line.part == "kv")
    assert kv.measured_bytes == kv.planned_bytes
    assert engine.stats().integrity_violations == {}


def test_kernels_can_be_wrapped_before_the_model_gets_them(settings: EngineSettings) -> None:
    calls: list[int] = []

    def counted(operations: Operations) -> Operations:
        def conclude(**arguments: Any) -> None:
            calls.append(arguments["step"])
            operations.conclude(**arguments)

        return replace(operations, conclude=conclude)

    engine, _ = startup.start_engine(settings, silent, counted)
    assert calls == list(range(1, engine.stats().steps + 1))
    engine.self_check()
    assert len(calls) == engine.stats().steps + 1


def test_more_than_one_rank_is_refused_with_the_reason(settings: EngineSettings) -> None:
    with pytest.raises(Refused, match="--tensor-parallel-size 2: this version runs one rank"):
        startup.start_engine(replace(settings, tensor_parallel_size=2), silent)


def test_only_the_specification_is_refused_unless_asked_for(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_kernels.cpu.library.why_unavailable", lambda: "there is no C compiler")
    with pytest.raises(Refused) as refused:
        startup.start_engine(settings, silent)
    assert refused.value.reason == "OnlyReferenceKernels"
    assert "cpu there is no C compiler" in refused.value.message
    assert "--allow-reference" in refused.value.message
    _, started = startup.start_engine(replace(settings, allow_reference=True), silent)
    assert {kernel.implementation for kernel in started.kernels} == {"reference"}


def test_planned_and_measured_bytes_are_reported(settings: EngineSettings) -> None:
    _, started = startup.start_engine(replace(settings, kv_cache_memory_bytes=32 << 20), silent)
    kv = next(line for line in started.memory if line.part == "kv")
    assert kv.planned_bytes <= 32 << 20
    assert kv.measured_bytes == kv.planned_bytes


def test_without_a_figure_the_pool_holds_a_full_context_in_every_slot(settings: EngineSettings) -> None:
    _, started = startup.start_engine(settings, silent)
    assert started.max_model_len == 512
    assert started.kv_tokens == 2 * 512


def test_a_small_pool_shortens_the_context_unless_one_was_asked_for(settings: EngineSettings) -> None:
    small = replace(settings, kv_cache_memory_bytes=5_000, kv_cache=KvFormat.BF16)
    with pytest.raises(Refused, match="--kv-cache-memory-bytes 5000 holds no page"):
        startup.start_engine(small, silent)
    some = replace(settings, kv_cache_memory_bytes=20_000, kv_cache=KvFormat.BF16)
    _, started = startup.start_engine(some, silent)
    assert started.max_model_len == started.kv_tokens == 192
    with pytest.raises(Refused, match="--max-model-len 512 does not fit the KV pool of 192 tokens"):
        startup.start_engine(replace(some, max_model_len=512), silent)


def test_formats_that_were_asked_for_are_taken(settings: EngineSettings) -> None:
    asked = replace(settings, weights=WeightFormat.BF16, kv_cache=KvFormat.BF16)
    _, started = startup.start_engine(asked, silent)
    assert (started.weights, started.kv_cache) == ("BF16", "BF16")


def test_memory_that_is_not_there_is_refused_before_loading(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "probe", lambda: replace(PLAIN_CPU, available_bytes=1000))
    with pytest.raises(Refused, match=r"INT4 weights take \d+ bytes, but CPU has 1000 of"):
        startup.start_engine(settings, silent)
    monkeypatch.setattr(startup, "probe", lambda: PLAIN_CPU)
    with pytest.raises(Refused, match=r"and the KV pool \d+ \(--kv-cache-memory-bytes\)"):
        startup.start_engine(replace(settings, kv_cache_memory_bytes=33 << 30), silent)


def test_a_broken_check_never_becomes_ready(settings: EngineSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_runtime.kv.holding.mix", lambda *_: 1)
    with pytest.raises(Refused, match=r"the warm-up request failed the KV integrity check \(binding\)"):
        startup.start_engine(settings, silent)
    startup.start_engine(replace(settings, integrity=IntegrityMode.OFF), silent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: replace(s, max_model_len=513), "--max-model-len 513: the model's positions end at 512"),
        (lambda s: replace(s, tensor_parallel_size=3), "--tensor-parallel-size 3: 2 attention heads do not divide"),
        (lambda s: replace(s, facts=s.facts.model_copy(update={"experts": None})), "is a dense model"),
    ],
)
def test_what_is_wrong_without_a_device_is_refused_without_one(
    settings: EngineSettings, change: Callable[[EngineSettings], EngineSettings], message: str
) -> None:
    settings.check()
    with pytest.raises(Refused, match=message):
        change(settings).check()


def test_the_planned_device_is_accepted() -> None:
    check_expected(GPU, ComputeCapability(9, 0), 143_771)
    check_expected(PLAIN_CPU, None, 32 << 10)
    check_expected(PLAIN_CPU, None, None)


@pytest.mark.parametrize(
    ("device", "capability", "memory_mib", "message"),
    [
        (GPU, ComputeCapability(10, 0), None, "--expect-compute-capability 10.0, but this is compute capability 9.0"),
        (PLAIN_CPU, ComputeCapability(9, 0), None, "--expect-compute-capability 9.0, but this is a CPU"),
        (GPU, None, 81_559, "--expect-memory-mib 81559, but an H200 has 143156 MiB"),
        (PLAIN_CPU, None, 128 << 10, "--expect-memory-mib 131072, but CPU has 65536 MiB"),
    ],
)
def test_another_device_than_the_planned_one_is_refused(
    device: DeviceFacts, capability: ComputeCapability | None, memory_mib: int | None, message: str
) -> None:
    with pytest.raises(Refused, match=message) as refused:
        check_expected(device, capability, memory_mib)
    assert refused.value.reason == "UnexpectedDevice"


def test_this_machine_is_recognised() -> None:
    device = probe()
    assert 0 < device.available_bytes <= device.memory_bytes
