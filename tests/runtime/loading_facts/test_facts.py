"""ModelFacts of published models, rebuilt tensor by tensor, and of checkpoints that contradict their config."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from octavo_runtime.contract.facts import AttentionKind, CheckpointFormat, ModelFacts
from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.facts import Checkpoint, read_checkpoint, read_facts
from octavo_runtime.loading.files import LocalFiles
from octavo_runtime.loading.stored_format import Packing
from tests import checkpoints
from tests.checkpoints import (
    FP8_MARKER,
    INT4_MARKER,
    NVFP4_MARKER,
    Tensor,
    header_of,
    write_checkpoint,
    write_safetensors,
)
from tests.published_models import (
    Config,
    Linear,
    glm_52_bf16,
    glm_52_fp8,
    gqa_config,
    gqa_tensors,
    kimi_k26,
)

GIB = 2**30

SMALL: Config = gqa_config(
    "Qwen3MoeForCausalLM",
    num_hidden_layers=2,
    hidden_size=256,
    vocab_size=512,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
)
SMALL_EXPERT_PARAMETERS = 2 * 4 * 3 * 128 * 256


def _facts(directory: Path, model: tuple[Config, Iterable[Tensor]], shards: int = 1) -> ModelFacts:
    return read_facts(write_checkpoint(directory, *model, shards=shards))


def _small(directory: Path, expert: Linear = checkpoints.linear, **fields: object) -> Path:
    config = SMALL | fields
    return write_checkpoint(directory, config, gqa_tensors(config, expert))


def _refusal(directory: Path) -> Refused:
    with pytest.raises(Refused) as refusal:
        read_facts(directory)
    return refusal.value


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """208,000 tensors in 64 files: as large as checkpoints get."""
    return read_checkpoint(LocalFiles(write_checkpoint(tmp_path_factory.mktemp("kimi"), *kimi_k26(), shards=64)))


def test_qwen3_30b_is_described(tmp_path: Path) -> None:
    config = gqa_config("Qwen3MoeForCausalLM")
    facts = _facts(tmp_path, (config, gqa_tensors(config)), shards=16)

    assert facts.attention.kind is AttentionKind.GQA
    assert (facts.attention.heads, facts.attention.kv_heads, facts.attention.head_dim) == (32, 4, 128)
    assert facts.experts is not None
    assert (facts.experts.count, facts.experts.per_token, facts.experts.layers) == (128, 8, 48)
    assert facts.format is CheckpointFormat.BF16
    assert facts.parameters.routed_experts == 48 * 128 * 3 * 768 * 2048
    assert facts.parameters.embeddings == 2 * 151936 * 2048
    assert facts.parameters.total == pytest.approx(30.53e9, rel=1e-3)
    assert facts.checkpoint_bytes == 2 * facts.parameters.total


def test_mixtral_is_described_from_its_own_names(tmp_path: Path) -> None:
    config = gqa_config(
        "MixtralForCausalLM",
        num_hidden_layers=32,
        hidden_size=4096,
        vocab_size=32000,
        num_key_value_heads=8,
        intermediate_size=14336,
        num_local_experts=8,
        num_experts_per_tok=2,
    )
    del config["num_experts"], config["moe_intermediate_size"]
    facts = _facts(tmp_path, (config, gqa_tensors(config, mlp="block_sparse_moe")))

    assert facts.experts is not None
    assert (facts.experts.count, facts.experts.intermediate_size, facts.experts.layers) == (8, 14336, 32)
    assert facts.parameters.routed_experts == 32 * 8 * 3 * 14336 * 4096
    assert facts.parameters.total == pytest.approx(46.7e9, rel=1e-3)


def test_kimi_k26_is_described_through_its_nested_config_and_packed_experts(kimi: Checkpoint) -> None:
    facts = kimi.facts

    assert facts.attention.kind is AttentionKind.MLA
    assert (facts.attention.kv_lora_rank, facts.attention.qk_rope_head_dim) == (512, 64)
    assert facts.experts is not None
    assert (facts.experts.count, facts.experts.layers) == (384, 60)
    assert (facts.format, facts.group_size) == (CheckpointFormat.INT4, 32)
    assert kimi.stored.packing is Packing.CT_INT4
    assert facts.parameters.routed_experts == 60 * 384 * 3 * 2048 * 7168
    assert facts.parameters.routed_experts == pytest.approx(1014.7e9, rel=1e-4)
    assert facts.parameters.embeddings + facts.parameters.other == pytest.approx(11.7e9, rel=5e-3)
    assert facts.checkpoint_bytes == pytest.approx(594.2e9, rel=1e-4)


def test_glm_52_in_bf16_has_the_published_size(tmp_path: Path) -> None:
    facts = _facts(tmp_path, glm_52_bf16(), shards=8)

    assert facts.parameters.total == pytest.approx(753.33e9, rel=1e-5)
    assert facts.parameters.routed_experts == pytest.approx(734.4e9, rel=1e-4)
    assert facts.checkpoint_bytes == pytest.approx(1506.660e9, rel=1e-5)
    assert facts.experts is not None
    assert facts.experts.layers == 75  # its multi-token prediction layer is no decoder layer


def test_glm_52_in_fp8_has_the_published_size_and_counts_no_scale_as_a_parameter(tmp_path: Path) -> None:
    facts = _facts(tmp_path, glm_52_fp8(), shards=8)

    assert (facts.format, facts.group_size) == (CheckpointFormat.FP8, 128)
    assert facts.parameters.total == pytest.approx(753.33e9, rel=1e-5)
    assert facts.checkpoint_bytes / GIB == pytest.approx(704.9, rel=1e-4)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"])
def test_a_dense_model_is_described_without_experts(tmp_path: Path, architecture: str) -> None:
    config = {k: v for k, v in SMALL.items() if "expert" not in k and k != "moe_intermediate_size"}
    config |= {"architectures": [architecture], "intermediate_size": 512}
    facts = _facts(tmp_path, (config, gqa_tensors(config)))

    assert facts.experts is None
    assert facts.format is CheckpointFormat.BF16
    assert facts.parameters.routed_experts == 0


@pytest.mark.parametrize(
    ("store", "marker", "expected", "group", "packing"),
    [
        (checkpoints.linear_ct_int4, INT4_MARKER, CheckpointFormat.INT4, 32, Packing.CT_INT4),
        (
            checkpoints.linear_gptq,
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
            CheckpointFormat.INT4,
            128,
            Packing.GPTQ_INT4,
        ),
        (
            checkpoints.linear_awq,
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
            CheckpointFormat.INT4,
            128,
            Packing.AWQ_INT4,
        ),
        (checkpoints.linear_fp8_block, FP8_MARKER, CheckpointFormat.FP8, 128, Packing.FP8_BLOCK),
        (checkpoints.linear_ct_nvfp4, NVFP4_MARKER, CheckpointFormat.NVFP4, 16, Packing.CT_NVFP4),
        (
            checkpoints.linear_modelopt_nvfp4,
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
            CheckpointFormat.NVFP4,
            16,
            Packing.MODELOPT_NVFP4,
        ),
    ],
)
def test_each_published_quantisation_is_recognised_and_its_weights_counted_once(
    tmp_path: Path, store: Linear, marker: object, expected: CheckpointFormat, group: int, packing: Packing
) -> None:
    checkpoint = read_checkpoint(LocalFiles(_small(tmp_path, store, quantization_config=marker)))

    assert (checkpoint.facts.format, checkpoint.facts.group_size) == (expected, group)
    assert checkpoint.stored.packing is packing
    assert checkpoint.facts.parameters.routed_experts == SMALL_EXPERT_PARAMETERS


def test_modelopt_markers_are_read_from_their_own_file(tmp_path: Path) -> None:
    directory = _small(tmp_path, checkpoints.linear_modelopt_nvfp4)
    marker = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}}
    (directory / "hf_quant_config.json").write_text(json.dumps(marker))

    assert read_facts(directory).format is CheckpointFormat.NVFP4


def test_experts_left_out_of_the_quantisation_make_an_unquantised_checkpoint(tmp_path: Path) -> None:
    facts = read_facts(_small(tmp_path, quantization_config=INT4_MARKER))
    assert (facts.format, facts.group_size) == (CheckpointFormat.BF16, None)


def test_one_tensor_for_all_experts_of_a_layer_counts_them_all(tmp_path: Path) -> None:
    tensors = [t for t in gqa_tensors(SMALL) if ".experts." not in t[0]]
    for layer in range(2):
        tensors.append((f"model.layers.{layer}.mlp.experts.gate_up_proj", "BF16", (4, 256, 256)))
        tensors.append((f"model.layers.{layer}.mlp.experts.down_proj", "BF16", (4, 256, 128)))
    facts = _facts(tmp_path, (SMALL, tensors))

    assert facts.parameters.routed_experts == SMALL_EXPERT_PARAMETERS


def test_names_with_endless_numbers_are_ordinary_names(tmp_path: Path) -> None:
    odd = [(f"model.layers.{'9' * 5000}.x", "U8", (1,)), ("model.layers.0.mlp.experts." + "1" * 5000, "BF16", (4,))]
    facts = _facts(tmp_path, (SMALL, [*gqa_tensors(SMALL), *odd]))
    assert facts.layers == 2


def test_tied_embeddings_count_once_even_when_they_are_stored_twice(tmp_path: Path) -> None:
    facts = read_facts(_small(tmp_path, tie_word_embeddings=True))
    assert facts.parameters.embeddings == 512 * 256


def test_the_revision_of_a_directory_changes_with_config_and_shapes_only(tmp_path: Path) -> None:
    first = read_facts(_small(tmp_path / "a")).revision
    same = read_facts(_small(tmp_path / "b")).revision
    other_config = read_facts(_small(tmp_path / "c", rope_theta=5.0)).revision
    other_shape = read_facts(_small(tmp_path / "d", vocab_size=1024)).revision

    assert first.startswith("sha256:")
    assert first == same
    assert len({first, other_config, other_shape}) == 3


def test_facts_survive_json_and_fit_a_termination_message(kimi: Checkpoint) -> None:
    facts = kimi.facts
    text = facts.model_dump_json(by_alias=True, exclude_none=True)

    assert ModelFacts.model_validate_json(text) == facts
    assert len(text) < 1024


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": "48"}, 'num_hidden_layers must be a positive integer, got "48"'),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, got 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer, got true"),
        ({"num_hidden_layers": 2**31 - 1}, "no tensor of layer 2"),
        ({"hidden_size": 2**40}, "hidden_size must be a positive integer"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 exceeds num_experts 4"),
        ({"num_experts": 8}, "8 experts are announced, layer 0 of the checkpoint holds 4"),
        ({"num_hidden_layers": 3}, "no tensor of layer 2"),
        ({"tie_word_embeddings": "yes"}, 'tie_word_embeddings must be true or false, got "yes"'),
        ({"architectures": []}, "architectures must be a list"),
        ({"architectures": "Qwen3MoeForCausalLM"}, "architectures must be a list"),
        ({"quantization_config": 3}, "quantization_config must be an object, got 3"),
        ({"quantization_config": FP8_MARKER | {"weight_block_size": "128"}}, "weight_block_size must be two"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "group_size or q_group_size is missing"),
    ],
)
def test_a_config_that_contradicts_itself_or_the_tensors_names_the_field(
    tmp_path: Path, fields: dict[str, object], what: str
) -> None:
    directory = _small(tmp_path)
    (directory / "config.json").write_text(json.dumps(SMALL | fields))

    refusal = _refusal(directory)

    assert refusal.reason == "ConfigInvalid"
    assert what in refusal.message


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"architectures": 1' + b"0" * 5000 + b"}"]
)
def test_a_config_that_is_no_json_object_is_refused_without_a_traceback(tmp_path: Path, content: bytes) -> None:
    directory = _small(tmp_path)
    (directory / "config.json").write_bytes(content)
    assert _refusal(directory).reason == "ConfigInvalid"


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones(tmp_path: Path) -> None:
    refusal = _refusal(_small(tmp_path, architectures=["MambaForCausalLM"]))
    assert refusal.reason == "ArchitectureUnsupported"
    assert "MambaForCausalLM" in refusal.message
    assert "Qwen3MoeForCausalLM" in refusal.message


def test_experts_in_a_model_that_claims_to_be_dense_are_refused(tmp_path: Path) -> None:
    refusal = _refusal(_small(tmp_path, architectures=["Qwen3ForCausalLM"]))
    assert refusal.reason == "ConfigInvalid"


def test_a_moe_config_over_a_dense_checkpoint_is_refused(tmp_path: Path) -> None:
    tensors = [t for t in gqa_tensors(SMALL) if ".experts." not in t[0]]
    refusal = _refusal(write_checkpoint(tmp_path, SMALL, tensors))
    assert refusal.reason == "ConfigInvalid"
    assert "holds none" in refusal.message


@pytest.mark.parametrize(
    ("store", "marker", "reason"),
    [
        pytest.param(checkpoints.linear_ct_int4, None, "ConfigInvalid", id="no marker"),
        pytest.param(checkpoints.linear_ct_int4, FP8_MARKER, "FormatUnsupported", id="another format's marker"),
        pytest.param(
            checkpoints.linear_ct_int4, {"quant_method": "bitsandbytes"}, "FormatUnsupported", id="unknown method"
        ),
        pytest.param(
            lambda name, n, k: checkpoints.linear_ct_int4(name, n, k, group=64),
            INT4_MARKER,
            "ConfigInvalid",
            id="other groups than announced",
        ),
        pytest.param(
            lambda name, n, k: checkpoints.linear_ct_int4(name, n, k)[:1],
            INT4_MARKER,
            "CheckpointCorrupt",
            id="no scale",
        ),
        pytest.param(lambda name, n, k: [(f"{name}.weight", "I8", (n, k))], None, "ConfigInvalid", id="plain int8"),
        pytest.param(
            lambda name, n, k: (
                checkpoints.linear_ct_int4(name, n, k) if "layers.0" in name else checkpoints.linear(name, n, k)
            ),
            INT4_MARKER,
            "FormatUnsupported",
            id="layers of two formats",
        ),
    ],
)
def test_markers_and_tensors_must_agree_on_the_format(
    tmp_path: Path, store: Linear, marker: object, reason: str
) -> None:
    assert _refusal(_small(tmp_path, store, quantization_config=marker)).reason == reason


def _without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(_without("config.json"), "ConfigMissing", id="no config"),
        pytest.param(_without("model.safetensors"), "WeightsMissing", id="no weights"),
    ],
)
def test_a_directory_that_lacks_a_part_is_refused(tmp_path: Path, damage: Callable[[Path], None], reason: str) -> None:
    directory = _small(tmp_path)
    damage(directory)
    assert _refusal(directory).reason == reason


def test_a_source_that_is_not_there_or_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert _refusal(tmp_path / "nowhere").reason == "SourceNotFound"
    assert _refusal(tmp_path / "file").reason == "SourceNotFound"


def test_a_tensor_that_the_index_promises_and_no_file_holds_is_named(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, SMALL, gqa_tensors(SMALL), shards=2)
    index = directory / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.layers.1.extra.weight"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(document))

    refusal = _refusal(directory)

    assert refusal.reason == "CheckpointCorrupt"
    assert "model.layers.1.extra.weight" in refusal.message


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    tensors = list(gqa_tensors(SMALL))
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", *header_of(tensors))
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", *header_of(tensors[:1]))
    (tmp_path / "config.json").write_text(json.dumps(SMALL))

    refusal = _refusal(tmp_path)

    assert refusal.reason == "CheckpointCorrupt"
    assert tensors[0][0] in refusal.message
