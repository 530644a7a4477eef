"""Routed experts: `sum_k weight_k * down_e(silu(gate_e(x)) * up_e(x))` over each token's k experts.

Each expert's tokens are gathered, computed in row tiles and put into their own [token, k] place; the k parts of a
token are then added in routing order. No sum depends on which other tokens are in the batch.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats.experts import Bf16Experts, CanonicalExperts, Int4Experts
from octavo_kernels.formats.int4 import dequantise
from octavo_kernels.operations import ExpertKernel
from octavo_kernels.reference.activation import silu
from octavo_kernels.reference.linear import tiled_matmul


class ReferenceExperts(ExpertKernel[CanonicalExperts]):
    """Plain torch for BF16 and INT4 experts; computes from the canonical layout, one expert promoted at a time."""

    def prepare(self, canonical: CanonicalExperts) -> CanonicalExperts:
        """The canonical layout itself: no second copy."""
        return canonical

    def apply(
        self, x: torch.Tensor, prepared: CanonicalExperts, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """See `ExpertKernel.apply`."""
        return grouped_experts(x, prepared, ids, weights)


def grouped_experts(
    x: torch.Tensor, experts: CanonicalExperts, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Apply routed experts: x [T, H] float32, ids [T, k] int64, weights [T, k] float32; result [T, H] float32."""
    require_dtype("x", x, torch.float32)
    require_dtype("ids", ids, torch.int64)
    require_shape("ids", ids, x.shape[0], None)
    require_shape("weights", weights, *ids.shape)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < experts.count:
        raise KernelInputError(f"ids has expert {int(ids.max())} or a negative one, needed 0 to {experts.count - 1}")
    parts = x.new_empty((*ids.shape, x.shape[1]))
    for expert in sorted(set(ids.flatten().tolist())):
        tokens, places = torch.where(ids == expert)
        parts[tokens, places] = _expert(x[tokens], experts, expert) * weights[tokens, places, None]
    total = parts[:, 0]
    for place in range(1, ids.shape[1]):
        total = total + parts[:, place]
    return total


def _expert(x: torch.Tensor, experts: CanonicalExperts, expert: int) -> torch.Tensor:
    gate_up, down = expert_weights(experts, expert)
    gate, up = tiled_matmul(x, gate_up.t()).chunk(2, dim=-1)
    return tiled_matmul(silu(gate) * up, down.t())


def expert_weights(experts: CanonicalExperts, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One expert's (gate_up [2I, H], down [H, I]) in float32."""
    match experts:
        case Bf16Experts():
            return experts.gate_up[expert].float(), experts.down[expert].float()
        case Int4Experts():
            return dequantise(experts.gate_up.select(expert)), dequantise(experts.down.select(expert))
        case _:
            raise KernelInputError(f"{type(experts).__name__} have no reference")
