"""Small expert layers for the tests of the Triton kernels, with weights that leave results of size 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.formats.experts import Bf16Experts, CanonicalExperts
from octavo_kernels.formats.linear import Activations
from octavo_kernels.reference.moe import grouped_experts
from octavo_kernels.triton.experts import TritonExperts
from tests.kernels.close import assert_close


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Standard normal float32 numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bf16_experts(count: int, hidden: int, intermediate: int) -> Bf16Experts:
    """Unquantised experts."""
    return Bf16Experts(
        gate_up=(random(count, 2 * intermediate, hidden, seed=1) * hidden**-0.5).bfloat16(),
        down=(random(count, hidden, intermediate, seed=2) * (4 / intermediate**0.5)).bfloat16(),
    )


def assert_equal_up_to_rounding(actual: torch.Tensor, expected: torch.Tensor, *, share: float = 2**-6) -> None:
    """No element is further off than `share` of the largest expected one.

    Operands of products are rounded to bfloat16, by 2**-9 at most each; some of that adds up in a sum of a hundred.
    """
    assert_close(actual, expected, within=share * max(1.0, float(expected.abs().max())))


@dataclass(frozen=True)
class Routed:
    """Tokens and where they go."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def by(self, kernel: TritonExperts, experts: CanonicalExperts) -> torch.Tensor:
        """The kernel's result."""
        return kernel.apply(self.x, kernel.prepare(experts), self.ids, self.weights)

    def by_reference(self, experts: CanonicalExperts, activations: Activations = Activations.EXACT) -> torch.Tensor:
        """The reference's."""
        return grouped_experts(self.x, experts, self.ids, self.weights, activations)


def routed(tokens: int, experts: int, top_k: int, hidden: int, seed: int = 0) -> Routed:
    """bfloat16 numbers as x, so that a kernel need not round them; distinct experts for each token."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand((tokens, experts), generator=generator).argsort(dim=1)[:, :top_k].contiguous()
    weights = torch.rand((tokens, top_k), generator=generator)
    return Routed(random(tokens, hidden, seed=seed + 100).bfloat16().float(), ids, weights)
