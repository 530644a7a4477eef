"""Routed experts equal the definition, token by token, for BF16 and INT4 weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.experts import Bf16Experts, CanonicalExperts, Int4Experts
from octavo_kernels.formats.int4 import dequantise, quantise
from octavo_kernels.reference.moe import ReferenceExperts, grouped_experts
from tests.kernels.close import assert_close

HIDDEN, INTERMEDIATE = 64, 32


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bf16_experts(count: int) -> Bf16Experts:
    return Bf16Experts(
        gate_up=(random(count, 2 * INTERMEDIATE, HIDDEN, seed=1) / 8).bfloat16(),
        down=(random(count, HIDDEN, INTERMEDIATE, seed=2) / 6).bfloat16(),
    )


def int4_experts(count: int) -> Int4Experts:
    plain = bf16_experts(count)
    return Int4Experts(quantise(plain.gate_up, 32), quantise(plain.down, 32))


def by_definition(x: torch.Tensor, experts: CanonicalExperts, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """float64, one token and one expert at a time."""
    if isinstance(experts, Int4Experts):
        gate_up, down = dequantise(experts.gate_up).double(), dequantise(experts.down).double()
    else:
        assert isinstance(experts, Bf16Experts)
        gate_up, down = experts.gate_up.double(), experts.down.double()
    out = torch.zeros_like(x, dtype=torch.float64)
    for token in range(x.shape[0]):
        for expert, share in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate, up = gate_up[expert][:INTERMEDIATE], gate_up[expert][INTERMEDIATE:]
            row = x[token].double()
            out[token] += share * (down[expert] @ (F.silu(gate @ row) * (up @ row)))
    return out


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(0, 20),
    count=st.integers(1, 6),
    top_k=st.integers(1, 3),
    int4=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_equals_the_definition(tokens: int, count: int, top_k: int, int4: bool, seed: int) -> None:
    experts = int4_experts(count) if int4 else bf16_experts(count)
    generator = torch.Generator().manual_seed(seed)
    top_k = min(top_k, count)
    ids = torch.rand((tokens, count), generator=generator).argsort(dim=1)[:, :top_k]
    x, weights = random(tokens, HIDDEN, seed=seed), torch.rand((tokens, top_k), generator=generator)
    got = grouped_experts(x, experts, ids, weights)
    assert_close(got.double(), by_definition(x, experts, ids, weights), within=1e-5)


@pytest.mark.parametrize("experts", [bf16_experts(4), int4_experts(4)], ids=["bf16", "int4"])
def test_one_expert_may_take_every_token_and_others_none(experts: CanonicalExperts) -> None:
    x, ids = random(40, HIDDEN), torch.full((40, 1), 3)
    weights = torch.ones((40, 1))
    got = grouped_experts(x, experts, ids, weights)
    assert_close(got.double(), by_definition(x, experts, ids, weights), within=1e-5)


@pytest.mark.parametrize("experts", [bf16_experts(6), int4_experts(6)], ids=["bf16", "int4"])
def test_a_token_has_the_same_bits_in_every_batch(experts: CanonicalExperts) -> None:
    x, weights = random(50, HIDDEN), torch.rand((50, 2), generator=torch.Generator().manual_seed(3))
    ids = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i))[:2] for i in range(50)])
    together = grouped_experts(x, experts, ids, weights)
    for token in range(50):
        own = slice(token, token + 1)
        assert torch.equal(grouped_experts(x[own], experts, ids[own], weights[own]), together[own])


def test_swapping_gate_and_up_changes_the_answer_so_the_comparison_can_fail() -> None:
    experts = bf16_experts(2)
    swapped = Bf16Experts(experts.gate_up.roll(INTERMEDIATE, dims=1), experts.down)
    x, ids, weights = random(3, HIDDEN), torch.zeros((3, 1), dtype=torch.int64), torch.ones((3, 1))
    wrong = grouped_experts(x, swapped, ids, weights).double() - by_definition(x, experts, ids, weights)
    assert wrong.abs().max() > 1e-2


def test_preparing_makes_no_second_copy() -> None:
    experts = int4_experts(2)
    assert ReferenceExperts().prepare(experts) is experts
    assert experts.nbytes == 2 * (2 * INTERMEDIATE * (HIDDEN // 2 + 2 * HIDDEN // 32) + HIDDEN * (16 + 2))


@pytest.mark.parametrize("expert", [-1, 2])
def test_an_expert_that_does_not_exist_is_refused(expert: int) -> None:
    with pytest.raises(KernelInputError, match="needed 0 to 1"):
        grouped_experts(random(1, HIDDEN), bf16_experts(2), torch.tensor([[expert]]), torch.ones((1, 1)))


def test_weights_that_do_not_fit_together_are_named() -> None:
    plain = bf16_experts(2)
    with pytest.raises(KernelInputError, match=r"down has shape \[2, 64, 31\], needed \[2, 64, 32\]"):
        Bf16Experts(plain.gate_up, plain.down[..., :31])
    with pytest.raises(KernelInputError, match="gate_up has 63 output rows"):
        Bf16Experts(plain.gate_up[:, :63], plain.down)
    packed = int4_experts(2)
    with pytest.raises(KernelInputError, match="down takes 64 features, gate_up gives 64 / 2"):
        Int4Experts(packed.gate_up, packed.gate_up)
