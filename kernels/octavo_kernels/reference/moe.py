"""Routed experts: `sum_k weight_k * down_e(silu(gate_e(x)) * up_e(x))` over each token's k experts.

Each expert's tokens are gathered, computed in row tiles and put into their own [token, k] place; the k parts of a
token are then added in routing order. No sum depends on which other tokens are in the batch.

Both products of an expert are those of `quantised_linear.py`: weight-only, or with activations rounded before each
product, the float32 intermediate `silu(gate) * up` like the input.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats.experts import Bf16Experts, CanonicalExperts
from octavo_kernels.formats.linear import Activations
from octavo_kernels.operations import ExpertKernel
from octavo_kernels.reference.activation import silu
from octavo_kernels.reference.linear import linear
from octavo_kernels.reference.quantised_linear import check_activations, dequantise, quantised_linear


class ReferenceExperts(ExpertKernel[CanonicalExperts]):
    """Plain torch for every format; computes from the canonical layout, one expert promoted at a time.

    BF16 experts have exact activations only.
    """

    def __init__(self, activations: Activations = Activations.EXACT) -> None:
        self.activations = activations

    def prepare(self, canonical: CanonicalExperts) -> CanonicalExperts:
        """The canonical layout itself: no second copy."""
        _check_formats(canonical, self.activations)
        return canonical

    def apply(
        self, x: torch.Tensor, prepared: CanonicalExperts, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """See `ExpertKernel.apply`."""
        return grouped_experts(x, prepared, ids, weights, self.activations)


def grouped_experts(
    x: torch.Tensor,
    experts: CanonicalExperts,
    ids: torch.Tensor,
    weights: torch.Tensor,
    activations: Activations = Activations.EXACT,
) -> torch.Tensor:
    """Apply routed experts: x [T, H] float32, ids [T, k] int64, weights [T, k] float32; result [T, H] float32."""
    require_dtype("x", x, torch.float32)
    require_dtype("ids", ids, torch.int64)
    require_dtype("weights", weights, torch.float32)
    require_shape(
        "x", x, None, experts.gate_up.shape[-1] if isinstance(experts, Bf16Experts) else experts.gate_up.in_features
    )
    require_shape("ids", ids, x.shape[0], None)
    require_shape("weights", weights, *ids.shape)
    _check_formats(experts, activations)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < experts.count:
        raise KernelInputError(f"ids has expert {int(ids.max())} or a negative one, needed 0 to {experts.count - 1}")
    parts = x.new_empty((*ids.shape, x.shape[1]))
    for expert in sorted(set(ids.flatten().tolist())):
        tokens, places = torch.where(ids == expert)
        parts[tokens, places] = _expert(x[tokens], experts, expert, activations) * weights[tokens, places, None]
    total = torch.zeros_like(x)
    for place in range(ids.shape[1]):
        total = total + parts[:, place]
    return total


def gate_times_up(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of rows [T, 2I] whose first half is the gate: [T, I] float32."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


def expert_weights(experts: CanonicalExperts, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One expert's (gate_up [2I, H], down [H, I]) in float32."""
    if isinstance(experts, Bf16Experts):
        return experts.gate_up[expert].float(), experts.down[expert].float()
    return dequantise(experts.gate_up.select(expert)), dequantise(experts.down.select(expert))


def _expert(x: torch.Tensor, experts: CanonicalExperts, expert: int, activations: Activations) -> torch.Tensor:
    if isinstance(experts, Bf16Experts):
        return linear(gate_times_up(linear(x, experts.gate_up[expert])), experts.down[expert])
    gate_up, down = experts.gate_up.select(expert), experts.down.select(expert)
    return quantised_linear(gate_times_up(quantised_linear(x, gate_up, activations)), down, activations)


def _check_formats(experts: CanonicalExperts, activations: Activations) -> None:
    if isinstance(experts, Bf16Experts):
        if activations is not Activations.EXACT:
            raise KernelInputError("BF16 experts have no type that their activations could be quantised to")
        return
    check_activations(experts.gate_up, activations)
    check_activations(experts.down, activations)
