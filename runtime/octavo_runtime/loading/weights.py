"""WeightReader: from tensors on disk to the layouts in memory, one layer at a time.

Everything but the routed experts stays BF16. Experts are converted expert by expert straight into the layer's final
memory, so the peak is the final weights, one canonical layer, and one expert's matrix in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from octavo_kernels.formats.experts import Bf16Experts, CanonicalExperts, Int4Experts
from octavo_kernels.formats.int4 import Int4Weight, QuantisationError, check_group, quantise
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.footprint import INT4_GROUP_SIZE
from octavo_runtime.contract.precision import WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.checkpoint import OpenCheckpoint

ExpertName = Callable[[int, str], str]
"""(expert, "gate" | "up" | "down") to the tensor's name."""


class WeightReader:
    """Reads one rank's weights of one model in the format that was chosen for its experts."""

    def __init__(self, checkpoint: OpenCheckpoint, facts: ModelFacts, weights: WeightFormat, device: torch.device):
        self._checkpoint = checkpoint
        self._weights = weights
        self._device = device
        if facts.experts is not None and weights is WeightFormat.INT4:
            _check_groups(facts)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return self._checkpoint.has(name)

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """One BF16 tensor of this shape on the device."""
        return self._checkpoint.take(name, shape).to(self._device)

    def experts(self, name: ExpertName, *, count: int, hidden: int, intermediate: int) -> CanonicalExperts:
        """The routed experts of one layer in canonical layout on the device."""
        match self._weights:
            case WeightFormat.BF16:
                return self._bf16(name, count, hidden, intermediate)
            case WeightFormat.INT4:
                return self._int4(name, count, hidden, intermediate)
            case other:
                raise Refused(
                    "WeightsUnsupported",
                    f"--weights {other.lower()}: this version of the bundled runtime loads experts as bf16 or int4",
                )

    def _bf16(self, name: ExpertName, count: int, hidden: int, intermediate: int) -> Bf16Experts:
        gate_up = torch.empty((count, 2 * intermediate, hidden), dtype=torch.bfloat16, device=self._device)
        down = torch.empty((count, hidden, intermediate), dtype=torch.bfloat16, device=self._device)
        for expert in range(count):
            gate_up[expert, :intermediate] = self.tensor(name(expert, "gate"), intermediate, hidden)
            gate_up[expert, intermediate:] = self.tensor(name(expert, "up"), intermediate, hidden)
            down[expert] = self.tensor(name(expert, "down"), hidden, intermediate)
        return Bf16Experts(gate_up, down)

    def _int4(self, name: ExpertName, count: int, hidden: int, intermediate: int) -> Int4Experts:
        gate_up = Int4Weight.empty(count, 2 * intermediate, hidden, group_size=INT4_GROUP_SIZE, device=self._device)
        down = Int4Weight.empty(count, hidden, intermediate, group_size=INT4_GROUP_SIZE, device=self._device)
        for expert in range(count):
            rows = gate_up.select(expert)
            rows.rows(0, intermediate).store(self._quantised(name(expert, "gate"), intermediate, hidden))
            rows.rows(intermediate, 2 * intermediate).store(self._quantised(name(expert, "up"), intermediate, hidden))
            down.select(expert).store(self._quantised(name(expert, "down"), hidden, intermediate))
        return Int4Experts(gate_up, down)

    def _quantised(self, name: str, rows: int, columns: int) -> Int4Weight:
        try:
            return quantise(self.tensor(name, rows, columns), INT4_GROUP_SIZE)
        except QuantisationError as error:
            raise Refused("CheckpointCorrupt", f"tensor {name}: {error}; copy the checkpoint again") from error


def _check_groups(facts: ModelFacts) -> None:
    assert facts.experts is not None
    for field, size in (
        ("hidden_size", facts.hidden_size),
        ("moe_intermediate_size", facts.experts.intermediate_size),
    ):
        try:
            check_group(size, INT4_GROUP_SIZE)
        except QuantisationError as error:
            raise Refused("WeightsUnsupported", f"config.json: {field}: {error}; use --weights bf16") from error
