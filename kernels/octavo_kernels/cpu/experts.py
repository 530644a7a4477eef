"""Routed experts in C: one call per layer, whatever the number of tokens.

INT4 has both ways to multiply of `reference.quantised_linear`: activations rounded to 8-bit integers per (row, group),
or exact ones; the other formats are weight-only. A token's result has the same bits whatever else is in the batch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from octavo_kernels.cpu import library
from octavo_kernels.cpu.activations import check_activations, uses_integers
from octavo_kernels.cpu.indices import require_within
from octavo_kernels.cpu.packing import PackedWeight, pack
from octavo_kernels.errors import require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.experts import CanonicalExperts
from octavo_kernels.formats.linear import Activations
from octavo_kernels.operations import ExpertKernel

PLACES_PER_PASS = 4096
"""Most (token, k) places in one pass: bounds the scratch memory, to about 40 MB at Qwen3-30B-A3B's shape."""


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
    """Experts in BF16, INT4, FP8 blocks or NVFP4; with `activations` None, what is fastest on this CPU."""

    def __init__(self, activations: Activations | None = None) -> None:
        self.activations = activations

    def prepare(self, canonical: CanonicalExperts) -> PackedExperts:
        """See `ExpertKernel.prepare`; INT4 group sizes are multiples of 8."""
        check_activations(canonical.gate_up, self.activations)
        gate_up = pack(canonical.gate_up, gate_up=True)
        down = pack(canonical.down)
        hidden, intermediate = _sizes(canonical)
        return PackedExperts(gate_up, down, canonical.count, hidden, intermediate)

    def apply(self, x: torch.Tensor, prepared: PackedExperts, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `ExpertKernel.apply`; raises KernelInputError for other shapes or dtypes, and for unknown experts."""
        _check(x, prepared, ids, weights)
        out = torch.empty_like(x)
        if not ids.numel():
            return out.zero_()
        up, down = prepared.gate_up, prepared.down
        integer = uses_integers(up.format, self.activations)
        tokens, top_k = ids.shape
        most = max(1, PLACES_PER_PASS // top_k)
        sizes = (
            *(up.format, integer, up.group, up.in_features, up.pairs, down.group, down.in_features, down.pairs),
            *(prepared.count, prepared.hidden, prepared.intermediate, top_k, most),
        )
        needed = _scratch_bytes(min(tokens, most), *sizes, threads=torch.get_num_threads())
        scratch = torch.empty(needed, dtype=torch.uint8)
        library.load().call(
            "experts_apply", x, ids, weights, out, scratch, None, *up.tensors, *down.tensors, tokens, *sizes
        )
        return out


@functools.lru_cache(maxsize=1024)
def _scratch_bytes(tokens: int, *sizes: int, threads: int) -> int:
    """What C says that it needs for as many tokens; `threads` is part of the key, since torch's setting counts."""
    needed = torch.zeros(1, dtype=torch.int64)
    library.load().call("experts_apply", *(None,) * 5, needed, *(None,) * 8, tokens, *sizes)
    return int(needed)


def _sizes(canonical: CanonicalExperts) -> tuple[int, int]:
    """H and I."""
    if isinstance(canonical.gate_up, torch.Tensor):
        return canonical.gate_up.shape[2], canonical.gate_up.shape[1] // 2
    return canonical.gate_up.in_features, canonical.down.in_features


def _check(x: torch.Tensor, prepared: PackedExperts, ids: torch.Tensor, weights: torch.Tensor) -> None:
    require_dtype("x", x, torch.float32)
    require_dtype("ids", ids, torch.int64)
    require_dtype("weights", weights, torch.float32)
    require_shape("x", x, None, prepared.hidden)
    require_shape("ids", ids, x.shape[0], None)
    require_shape("weights", weights, *ids.shape)
    require_contiguous(x=x, ids=ids, weights=weights)
    require_within("ids", ids, prepared.count)
