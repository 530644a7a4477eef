"""load_model: what ends up in memory, what is refused, and how much memory it takes on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from octavo_kernels.catalogue import operations_for
from octavo_kernels.device import Device
from octavo_kernels.formats.experts import Bf16Experts, Int4Experts
from octavo_kernels.formats.int4 import dequantise, quantise
from octavo_kernels.implementations import reference
from octavo_kernels.registry import Formats, Registry
from octavo_runtime.contract.footprint import weight_bytes
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.load import load_model
from octavo_runtime.models.qwen3_moe import Qwen3Moe
from tests.checkpoints import write_checkpoint
from tests.runtime.qwen3_moe_files import Shape, write

CPU = torch.device("cpu")


def load(path: Path, weights: WeightFormat = WeightFormat.BF16) -> Qwen3Moe:
    """With the specification's kernels, which leave weights in the canonical layout that the tests look at."""
    facts = read_facts(path)
    formats, specification = Formats(weights), Registry(reference.IMPLEMENTATIONS)
    operations = operations_for(Device.cpu(), formats, specification, allow_reference=True)
    model = load_model(path, facts, ParallelLayout.of(facts, 1), weights, CPU, operations=operations)
    assert isinstance(model, Qwen3Moe)
    return model


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_bf16_weights_are_those_of_the_file(tmp_path: Path, shards: int, tied: bool) -> None:
    shape = Shape(tied=tied)
    tensors = shape.tensors()
    model = load(write(tmp_path, shape.config(), tensors, shards=shards))
    assert torch.equal(model.embedding, tensors["model.embed_tokens.weight"])
    assert torch.equal(model.output_head, tensors["model.embed_tokens.weight" if tied else "lm_head.weight"])
    layer = model.layers[1]
    assert torch.equal(layer.attention.key, tensors["model.layers.1.self_attn.k_proj.weight"])
    assert torch.equal(layer.experts.router, tensors["model.layers.1.mlp.gate.weight"])
    experts = layer.experts.experts
    assert isinstance(experts, Bf16Experts)
    prefix = "model.layers.1.mlp.experts.3"
    assert torch.equal(experts.gate_up[3, : shape.intermediate], tensors[f"{prefix}.gate_proj.weight"])
    assert torch.equal(experts.gate_up[3, shape.intermediate :], tensors[f"{prefix}.up_proj.weight"])
    assert torch.equal(experts.down[3], tensors[f"{prefix}.down_proj.weight"])


def test_int4_experts_are_the_rounded_weights_of_the_file_and_the_rest_stays_bf16(tmp_path: Path) -> None:
    shape = Shape()
    tensors = shape.tensors()
    model = load(write(tmp_path, shape.config(), tensors), WeightFormat.INT4)
    experts = model.layers[0].experts.experts
    assert isinstance(experts, Int4Experts)
    for expert in range(shape.experts):
        prefix = f"model.layers.0.mlp.experts.{expert}"
        gate_up = torch.cat([tensors[f"{prefix}.{part}_proj.weight"] for part in ("gate", "up")])
        down = tensors[f"{prefix}.down_proj.weight"]
        assert torch.equal(dequantise(experts.gate_up.select(expert)), dequantise(quantise(gate_up, 32)))
        assert torch.equal(dequantise(experts.down.select(expert)), dequantise(quantise(down, 32)))
    assert torch.equal(model.layers[0].attention.query, tensors["model.layers.0.self_attn.q_proj.weight"])


@pytest.mark.parametrize("weights", [WeightFormat.BF16, WeightFormat.INT4])
@pytest.mark.parametrize("tied", [True, False])
def test_the_bytes_in_memory_are_those_that_the_operator_plans_with(
    tmp_path: Path, weights: WeightFormat, tied: bool
) -> None:
    shape = Shape(tied=tied)
    model = load(write(tmp_path, shape.config(), shape.tensors()), weights)
    assert model.weight_bytes == weight_bytes(model.facts, weights, ParallelLayout.of(model.facts, 1)).total


def test_progress_ends_with_everything_that_was_read(tmp_path: Path) -> None:
    shape = Shape()
    path = write(tmp_path, shape.config(), shape.tensors())
    facts, said = read_facts(path), list[str]()
    load_model(path, facts, ParallelLayout.of(facts, 1), WeightFormat.INT4, CPU, said.append)
    megabytes = f"{facts.checkpoint_bytes / 1e6:,.1f}"
    assert said[-1].startswith(f"loaded {megabytes} of {megabytes} MB")


def test_a_stored_copy_of_tied_embeddings_is_ignored_by_rule(tmp_path: Path) -> None:
    shape = Shape()
    tensors = shape.tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    assert load(write(tmp_path, shape.config(), tensors)).output_head.shape == (shape.vocab, shape.hidden)


def refused(path: Path, reason: str, *words: str, weights: WeightFormat = WeightFormat.BF16) -> None:
    facts = read_facts(path)
    with pytest.raises(Refused) as caught:
        load_model(path, facts, ParallelLayout.of(facts, 1), weights, CPU)
    assert caught.value.reason == reason
    for word in words:
        assert word in caught.value.message


def test_a_bias_that_the_model_has_no_place_for_is_refused(tmp_path: Path) -> None:
    tensors = Shape().tensors()
    tensors["model.layers.1.self_attn.q_proj.bias"] = torch.zeros(64).bfloat16()
    path = write(tmp_path, Shape().config(), tensors)
    refused(path, "TensorUnexpected", "model.safetensors", "model.layers.1.self_attn.q_proj.bias")


@pytest.mark.parametrize(
    "name",
    ["model.norm.weight", "model.layers.1.self_attn.q_norm.weight", "model.layers.0.mlp.experts.2.up_proj.weight"],
)
def test_a_missing_tensor_is_refused_by_name(tmp_path: Path, name: str) -> None:
    tensors = Shape().tensors()
    del tensors[name]
    refused(write(tmp_path, Shape().config(), tensors), "TensorMissing", name)


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.0.mlp.experts.2.up_proj.weight", "model.norm.weight"]
)
def test_a_tensor_of_another_shape_is_refused_by_name(tmp_path: Path, name: str) -> None:
    tensors = Shape().tensors()
    tensors[name] = torch.cat((tensors[name], tensors[name]))
    refused(write(tmp_path, Shape().config(), tensors), "TensorShapeWrong", name, "model.safetensors")


def test_a_weight_that_is_nan_has_no_int4_value(tmp_path: Path) -> None:
    tensors = Shape().tensors()
    tensors["model.layers.1.mlp.experts.0.down_proj.weight"][3, 5] = float("nan")
    path = write(tmp_path, Shape().config(), tensors)
    refused(path, "CheckpointCorrupt", "model.layers.1.mlp.experts.0.down_proj.weight", weights=WeightFormat.INT4)


def test_a_size_that_int4_groups_do_not_divide_is_refused_with_the_field(tmp_path: Path) -> None:
    shape = replace(Shape(), intermediate=40)
    path = write(tmp_path, shape.config(), shape.tensors())
    refused(path, "WeightsUnsupported", "moe_intermediate_size", "40", "bf16", weights=WeightFormat.INT4)


@pytest.mark.parametrize("weights", [WeightFormat.FP8, WeightFormat.NVFP4])
def test_formats_without_a_loader_are_refused(tmp_path: Path, weights: WeightFormat) -> None:
    path = write(tmp_path, Shape().config(), Shape().tensors())
    refused(path, "WeightsUnsupported", f"--weights {weights.lower()}", weights=weights)


def test_more_than_one_rank_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, Shape().config(), Shape().tensors())
    facts = read_facts(path)
    with pytest.raises(Refused, match="--tensor-parallel-size 2") as caught:
        load_model(path, facts, ParallelLayout.of(facts, 2), WeightFormat.BF16, CPU)
    assert caught.value.reason == "TensorParallelUnsupported"


def test_a_dense_model_is_refused_as_no_mixture_of_experts(tmp_path: Path) -> None:
    config = Shape().config(architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    tensors = [(name, "BF16", tuple(t.shape)) for name, t in Shape().tensors().items() if ".experts." not in name]
    refused(write_checkpoint(tmp_path, config, tensors), "NotMixtureOfExperts", "Qwen3ForCausalLM")


MEASURE = """
import json, sys
from pathlib import Path
import torch
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import WeightFormat
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.load import load_model

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

facts = read_facts(Path(sys.argv[1]))
torch.ones(1 << 16).mean()
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
model = load_model(
    Path(sys.argv[1]), facts, ParallelLayout.of(facts, 1), WeightFormat(sys.argv[2]), torch.device("cpu")
)
print(json.dumps({"peak": memory("VmHWM") - before, "final": model.weight_bytes}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc to reset the peak")
@pytest.mark.parametrize("weights", [WeightFormat.BF16, WeightFormat.INT4])
def test_the_peak_is_the_final_weights_one_layer_of_the_file_and_two_matrices_of_an_expert(
    tmp_path: Path, weights: WeightFormat
) -> None:
    shape = Shape(hidden=1024, layers=6, experts=16, intermediate=512, vocab=512)
    tensors = [(name, "BF16", size) for name, size in shape.sizes().items()]
    path = write_checkpoint(tmp_path, shape.config(), tensors)
    layer_bytes = shape.experts * 3 * shape.hidden * shape.intermediate * 2
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), weights], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)
    matrix_bytes = 2 * shape.intermediate * shape.hidden * 4
    assert figures["peak"] < figures["final"] + layer_bytes + 2 * matrix_bytes
