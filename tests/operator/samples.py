"""Facts, nodes and specs that the operator's tests share."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.hardware import CpuFacts, GpuFacts
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.hardware.node import Node
from octavo_runtime.contract.facts import (
    AttentionFacts,
    AttentionKind,
    CheckpointFormat,
    ExpertFacts,
    ModelFacts,
    ParameterFacts,
)
from octavo_runtime.contract.precision import ComputeCapability

GIB = 2**30
IMAGE = "registry.example/octavo/runtime:1"
SOURCE = "oci://registry.example/octavo/tiny-moe:dev"

TINY = ModelFacts(
    architecture="Qwen3MoeForCausalLM",
    revision="sha256:1111",
    layers=4,
    hidden_size=128,
    vocab_size=2048,
    max_position_embeddings=2048,
    attention=AttentionFacts(kind=AttentionKind.GQA, heads=8, kv_heads=4, head_dim=32),
    experts=ExpertFacts(count=16, per_token=4, intermediate_size=64, layers=4),
    format=CheckpointFormat.BF16,
    parameters=ParameterFacts(routed_experts=16 * 3 * 128 * 64 * 4, embeddings=2048 * 128, other=400_000),
    checkpoint_bytes=4_000_000,
)

QWEN_30B = ModelFacts(
    architecture="Qwen3MoeForCausalLM",
    revision="0123456789abcdef0123456789abcdef01234567",
    layers=48,
    hidden_size=2048,
    vocab_size=151_936,
    max_position_embeddings=40_960,
    attention=AttentionFacts(kind=AttentionKind.GQA, heads=32, kv_heads=4, head_dim=128),
    experts=ExpertFacts(count=128, per_token=8, intermediate_size=768, layers=48),
    format=CheckpointFormat.BF16,
    parameters=ParameterFacts(
        routed_experts=128 * 3 * 2048 * 768 * 48, embeddings=2 * 151_936 * 2048, other=920_000_000
    ),
    checkpoint_bytes=61_000_000_000,
)

KIMI_K2 = ModelFacts(
    architecture="KimiK2ForCausalLM",
    revision="kimi",
    layers=61,
    hidden_size=7168,
    vocab_size=163_840,
    max_position_embeddings=262_144,
    attention=AttentionFacts(
        kind=AttentionKind.MLA, heads=64, kv_heads=64, head_dim=128, kv_lora_rank=512, qk_rope_head_dim=64
    ),
    experts=ExpertFacts(count=384, per_token=8, intermediate_size=2048, layers=60),
    format=CheckpointFormat.INT4,
    group_size=32,
    parameters=ParameterFacts(
        routed_experts=384 * 3 * 7168 * 2048 * 60, embeddings=2 * 163_840 * 7168, other=11_700_000_000
    ),
    checkpoint_bytes=595_000_000_000,
)

DENSE = TINY.model_copy(update={"experts": None, "architecture": "LlamaForCausalLM"})

CPU = CpuFacts(memory_mib=None, origin="a CPU pool")


def gpu(capability: str, memory_mib: int, per_node: int = 8) -> GpuFacts:
    """A labelled class of GPUs on two nodes."""
    return GpuFacts(
        capability=ComputeCapability.parse(capability),
        memory_mib=memory_mib,
        gpus_per_node=per_node,
        nodes=2,
        origin="labels of 2 of 2 nodes with nvidia.com/gpu",
        labelled=True,
    )


H200 = gpu("9.0", 143_771)
H100 = gpu("9.0", 81_559)


def node_body(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    """A Node as the API server has it."""
    return {
        "metadata": {"name": name, "labels": labels or {}, "uid": f"uid-{name}"},
        "spec": {"taints": taints} if taints else {},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", **(allocatable or {})}},
    }


def gpu_node(name: str, major: str, minor: str, memory: str, count: str = "8", **labels: str) -> Node:
    """A node with GPU feature discovery's labels."""
    extra = {key.replace("_", "."): value for key, value in labels.items()}
    return Node.of(
        node_body(
            name,
            labels={
                "nvidia.com/gpu.compute.major": major,
                "nvidia.com/gpu.compute.minor": minor,
                "nvidia.com/gpu.memory": memory,
                **extra,
            },
            allocatable={"nvidia.com/gpu": count},
        )
    )


def spec_document(**changes: Any) -> dict[str, Any]:
    """spec of a tiny CPU model; keyword arguments replace whole fields."""
    return {
        "model": {"source": SOURCE},
        "pools": [{"name": "cpu", "accelerator": "None"}],
        "replicas": 1,
        **changes,
    }


def spec(**changes: Any) -> ModelDeploymentSpec:
    """The parsed spec."""
    return ModelDeploymentSpec.model_validate(spec_document(**changes))
