"""Routed experts of one layer for one token at Qwen3-30B-A3B's shape: INT4 in C against torch's own products.

Every arm visits the experts in rotation, eight a round, so that no weight is in a cache when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.kernels_arms import Arm, Times, take_turns
from benchmarks.kernels_stream import read_arm
from octavo_kernels.cpu.experts import CpuExperts, PackedExperts
from octavo_kernels.formats.experts import Int4Experts
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.linear import Activations

HIDDEN, INTERMEDIATE, TOP_K, GROUP = 2048, 768, 8, 128
FULL_WEIGHTS = 40
"""Experts of the BF16 and float32 arms: 380 and 755 MB, which no cache holds either."""


def bytes_per_token() -> int:
    """Bytes of weights that one token's experts are: half a byte per value and a BF16 scale per group."""
    values = 3 * HIDDEN * INTERMEDIATE * TOP_K
    return values // 2 + values // GROUP * 2


def measure(rounds: int, experts: int) -> dict[str, Times]:
    """All arms; seconds for one layer and one token."""
    x, weights = torch.randn(1, HIDDEN), torch.full((1, TOP_K), 1 / TOP_K)
    packed = CpuExperts().prepare(_int4(experts))
    full = min(experts, FULL_WEIGHTS)
    gate_up = torch.randn(full, 2 * INTERMEDIATE, HIDDEN)
    down = torch.randn(full, HIDDEN, INTERMEDIATE)
    arms = {
        "read": read_arm(),
        "int4": Arm(_fused(CpuExperts(), packed, x, weights, experts)),
        "int4_exact": Arm(_fused(CpuExperts(Activations.EXACT), packed, x, weights, experts)),
        "bf16_linear": Arm(_linears(x.bfloat16(), gate_up.bfloat16(), down.bfloat16())),
        "fp32_linear": Arm(_linears(x, gate_up, down)),
        "aten_int4": Arm(_aten(x.bfloat16(), experts)),
    }
    return take_turns(arms, rounds)


def _int4(experts: int) -> Int4Experts:
    return Int4Experts(_random_int4(experts, 2 * INTERMEDIATE, HIDDEN), _random_int4(experts, HIDDEN, INTERMEDIATE))


def _random_int4(experts: int, rows: int, columns: int) -> Int4Weight:
    packed = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8)
    scales = (torch.rand(experts, rows, columns // GROUP) * 0.01).bfloat16()
    return Int4Weight(packed, scales, GROUP)


def _chosen(turn: int, experts: int) -> list[int]:
    return [(turn * TOP_K + place) % experts for place in range(TOP_K)]


def _fused(
    kernel: CpuExperts, packed: PackedExperts, x: torch.Tensor, weights: torch.Tensor, experts: int
) -> Callable[[int], torch.Tensor]:
    # The two fused arms share their weights; half a rotation apart, neither warms the other's.
    offset = experts // 2 if kernel.activations is Activations.EXACT else 0
    routed = [torch.tensor([[(e + offset) % experts for e in _chosen(turn, experts)]]) for turn in range(experts)]
    return lambda turn: kernel.apply(x, packed, routed[turn % experts], weights)


def _linears(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> Callable[[int], torch.Tensor]:
    def layer(turn: int) -> torch.Tensor:
        total = torch.zeros_like(x)
        for expert in _chosen(turn, gate_up.shape[0]):
            gate, up = F.linear(x, gate_up[expert]).chunk(2, dim=-1)
            total += F.linear(F.silu(gate) * up, down[expert]) / TOP_K
        return total

    return layer


def _aten(x: torch.Tensor, experts: int) -> Callable[[int], torch.Tensor]:
    multiply = partial(torch.ops.aten._weight_int4pack_mm_for_cpu, qGroupSize=GROUP)
    gate_up = _aten_weights(experts, 2 * INTERMEDIATE, HIDDEN)
    down = _aten_weights(experts, HIDDEN, INTERMEDIATE)

    def layer(turn: int) -> torch.Tensor:
        total = torch.zeros_like(x)
        for expert in _chosen(turn, experts):
            words, scales = gate_up[expert]
            gate, up = multiply(x, words, qScaleAndZeros=scales).chunk(2, dim=-1)
            words, scales = down[expert]
            total += multiply(F.silu(gate) * up, words, qScaleAndZeros=scales) / TOP_K
        return total

    return layer


def _aten_weights(experts: int, rows: int, columns: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    # Its packing is slow and every expert may hold the same numbers: one is packed and copied.
    values = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
    words = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
    scales = (torch.rand(columns // GROUP, rows, 2) * 0.01).bfloat16()
    return [(words.clone(), scales.clone()) for _ in range(experts)]
