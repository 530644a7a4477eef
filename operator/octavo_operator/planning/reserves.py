"""What a replica needs besides weights and KV cache. Every constant is a stated reserve; status shows the sums."""

from __future__ import annotations

from octavo_operator.api.hardware import CpuFacts, Hardware
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.footprint import BITS_PER_BYTE, expert_bits
from octavo_runtime.contract.launch import MAX_NUM_BATCHED_TOKENS
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import WeightFormat

GIB = 2**30
MIB = 2**20

CPU_RUNTIME_BYTES = 1 * GIB
"""Two Python processes, torch and its libraries, tokenizer and page tables of a CPU pod. Measured at idle with torch
2.15: 0.43 GB of anonymous memory, and up to 0.4 GB of libraries and checkpoint in the page cache, which can be dropped.
"""

GPU_CONTEXT_BYTES = int(1.5 * GIB)
"""CUDA context, cuBLAS and NCCL workspaces of one GPU."""

GPU_FRAGMENTATION_SHARE = 0.02
"""Share of a GPU's memory that the allocator loses to fragmentation and that drivers keep."""

ACTIVATION_COPIES = 12
"""Hidden-size tensors alive at once in a decoder layer: residual, norms, Q, K, V, attention output, router, sums."""

UNQUANTISED_BITS = 16.0
"""Bits per weight of a BF16 or FP16 checkpoint as it is read."""

DEQUANTISATION_SCRATCH_BYTES = 512 * MIB
"""Bound of the buffer into which prefill dequantises experts; a layer that needs less takes less."""


def runtime_bytes(hardware: Hardware) -> int:
    """Interpreter, libraries, device context and fragmentation."""
    if isinstance(hardware, CpuFacts):
        return CPU_RUNTIME_BYTES
    return GPU_CONTEXT_BYTES + int(hardware.memory_mib * MIB * GPU_FRAGMENTATION_SHARE)


def activation_bytes(
    facts: ModelFacts, weights: WeightFormat, layout: ParallelLayout, sequences: int, hardware: Hardware
) -> int:
    """The larger of what a forward step needs on one rank and what loading needs before the first step."""
    element = 4 if isinstance(hardware, CpuFacts) else 2
    hidden = MAX_NUM_BATCHED_TOKENS * facts.hidden_size * ACTIVATION_COPIES * element
    logits = 2 * sequences * layout.vocab_per_rank * 4
    step = hidden + _expert_activations(facts, element) + logits + _dequantisation(facts, weights, layout)
    return max(step, _loading(facts, weights, layout))


def _expert_activations(facts: ModelFacts, element: int) -> int:
    """Gate, up and down outputs of every (token, expert) pair of a step."""
    if facts.experts is None:
        return 0
    width = 2 * facts.experts.intermediate_size + facts.hidden_size
    return MAX_NUM_BATCHED_TOKENS * facts.experts.per_token * width * element


def _layer_expert_parameters(facts: ModelFacts, layout: ParallelLayout) -> int:
    """Routed-expert parameters of one layer on one rank."""
    if facts.experts is None:
        return 0
    return facts.parameters.routed_experts // (facts.experts.layers * layout.world_size)


def _dequantisation(facts: ModelFacts, weights: WeightFormat, layout: ParallelLayout) -> int:
    if weights is WeightFormat.BF16:
        return 0
    return min(2 * _layer_expert_parameters(facts, layout), DEQUANTISATION_SCRATCH_BYTES)


def _loading(facts: ModelFacts, weights: WeightFormat, layout: ParallelLayout) -> int:
    """Layers are loaded and repacked one by one: one layer's experts as read and as packed, at the same time."""
    packed = expert_bits(weights, facts.group_size)
    bits = packed + (packed if facts.format.quantised else UNQUANTISED_BITS)
    return int(_layer_expert_parameters(facts, layout) * bits) // BITS_PER_BYTE
