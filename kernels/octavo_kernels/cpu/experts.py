"""Routed experts in C: one call per layer, whatever the number of tokens.

INT4 has two ways to multiply. W4A8 rounds activations to 8-bit integers per (row, group) and is specified by
`reference.moe_w4a8`; W4A32 keeps them in float32 and is specified by `reference.moe`, as are all other formats.
A token's result has the same bits whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from octavo_kernels.cpu import library
from octavo_kernels.cpu.packing import Format, PackedWeight, pack
from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats.experts import CanonicalExperts
from octavo_kernels.operations import ExpertKernel

PLACES_PER_PASS = 4096
"""Most (token, k) places in one pass: bounds the scratch memory, to about 40 MB at Qwen3-30B-A3B's shape."""


class Activations(StrEnum):
    """What INT4 weights are multiplied by."""

    INT8 = "W4A8"
    FLOAT32 = "W4A32"


@dataclass(frozen=True)
class PackedExperts:
    """One layer's experts in the layout of the loaded instruction set."""

    gate_up: PackedWeight
    down: PackedWeight
    count: int
    hidden: int
    intermediate: int

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.gate_up.nbytes + self.down.nbytes


class CpuExperts(ExpertKernel[PackedExperts]):
    """Experts in BF16, INT4, FP8 blocks or NVFP4 (the last two weight-only)."""

    def __init__(self, activations: Activations = Activations.INT8) -> None:
        self.activations = activations

    def prepare(self, canonical: CanonicalExperts) -> PackedExperts:
        """See `ExpertKernel.prepare`; INT4 group sizes are multiples of 8."""
        gate_up = pack(canonical.gate_up, gate_up=True)
        down = pack(canonical.down)
        hidden, intermediate = _sizes(canonical)
        return PackedExperts(gate_up, down, canonical.count, hidden, intermediate)

    def apply(self, x: torch.Tensor, prepared: PackedExperts, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `ExpertKernel.apply`; raises KernelInputError for other shapes or dtypes, and for unknown experts."""
        x, ids, weights = _checked(x, prepared, ids, weights)
        out = torch.empty_like(x)
        if not ids.numel():
            return out.zero_()
        scratch_bytes = torch.empty(1, dtype=torch.int64)
        call = library.load().call
        up, down = prepared.gate_up, prepared.down
        integer = self.activations is Activations.INT8 and up.format in (Format.INT4, Format.INT4_ZEROS)
        most = max(1, PLACES_PER_PASS // ids.shape[1])
        description = (
            *(*up.tensors, *down.tensors, int(up.format), int(integer)),
            *(up.group, up.in_features, up.pairs, down.group, down.in_features, down.pairs),
            *(prepared.count, prepared.hidden, prepared.intermediate, x.shape[0], ids.shape[1], most),
        )
        call("experts_apply", x, ids, weights, None, None, scratch_bytes, *description)
        scratch = torch.empty(int(scratch_bytes) + 64, dtype=torch.uint8)
        call("experts_apply", x, ids, weights, out, scratch, scratch_bytes, *description)
        return out


def _sizes(canonical: CanonicalExperts) -> tuple[int, int]:
    """H and I."""
    if isinstance(canonical.gate_up, torch.Tensor):
        return canonical.gate_up.shape[2], canonical.gate_up.shape[1] // 2
    return canonical.gate_up.in_features, canonical.down.in_features


def _checked(
    x: torch.Tensor, prepared: PackedExperts, ids: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    require_dtype("x", x, torch.float32)
    require_dtype("ids", ids, torch.int64)
    require_dtype("weights", weights, torch.float32)
    require_shape("x", x, None, prepared.hidden)
    require_shape("ids", ids, x.shape[0], None)
    require_shape("weights", weights, *ids.shape)
    if ids.numel():
        lowest, highest = (int(end) for end in ids.aminmax())
        if lowest < 0 or highest >= prepared.count:
            raise KernelInputError(f"ids has experts {lowest} to {highest}, needed 0 to {prepared.count - 1}")
    return x.contiguous(), ids.contiguous(), weights.contiguous()
