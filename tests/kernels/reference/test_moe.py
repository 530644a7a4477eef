"""Routed experts equal the definition, token by token, for every format, weight-only and with rounded activations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8_block, int4, nvfp4
from octavo_kernels.formats.experts import (
    Bf16Experts,
    CanonicalExperts,
    Fp8BlockExperts,
    Int4Experts,
    Nvfp4Experts,
)
from octavo_kernels.formats.linear import Activations
from octavo_kernels.reference.moe import ReferenceExperts, expert_weights, grouped_experts
from octavo_kernels.reference.quantised_linear import quantised_linear
from tests.kernels.close import assert_close

HIDDEN, INTERMEDIATE = 64, 32
FORMATS = ("bf16", "int4", "int4 with zeros", "fp8", "nvfp4")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bf16_experts(count: int) -> Bf16Experts:
    return Bf16Experts(
        gate_up=(random(count, 2 * INTERMEDIATE, HIDDEN, seed=1) / 8).bfloat16(),
        down=(random(count, HIDDEN, INTERMEDIATE, seed=2) / 6).bfloat16(),
    )


def int4_experts(count: int, *, asymmetric: bool = False) -> Int4Experts:
    plain = bf16_experts(count)
    return Int4Experts(
        int4.quantise(plain.gate_up, 32, asymmetric=asymmetric), int4.quantise(plain.down, 16, asymmetric=asymmetric)
    )


def nvfp4_experts(count: int) -> Nvfp4Experts:
    plain = bf16_experts(count)
    scale = torch.full((count,), 4 / (6 * 448))
    return Nvfp4Experts(
        replace(nvfp4.quantise(plain.gate_up), input_scale=scale),
        replace(nvfp4.quantise(plain.down), input_scale=scale * 2),
    )


def experts_in(name: str, count: int) -> CanonicalExperts:
    plain = bf16_experts(count)
    match name:
        case "bf16":
            return plain
        case "fp8":
            return Fp8BlockExperts(fp8_block.quantise(plain.gate_up), fp8_block.quantise(plain.down))
        case "nvfp4":
            return nvfp4_experts(count)
        case _:
            return int4_experts(count, asymmetric=name != "int4")


def by_definition(x: torch.Tensor, experts: CanonicalExperts, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """float64, one token and one expert at a time."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for token in range(x.shape[0]):
        for expert, share in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate_up, down = (weight.double() for weight in expert_weights(experts, expert))
            gate, up = gate_up[:INTERMEDIATE], gate_up[INTERMEDIATE:]
            row = x[token].double()
            out[token] += share * (down @ (F.silu(gate @ row) * (up @ row)))
    return out


def routed(tokens: int, count: int, top_k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and weights of `top_k` different experts for each token."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand((tokens, count), generator=generator).argsort(dim=1)[:, :top_k]
    return ids, torch.rand((tokens, top_k), generator=generator)


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(0, 20),
    count=st.integers(1, 6),
    top_k=st.integers(1, 3),
    name=st.sampled_from(FORMATS),
    seed=st.integers(0, 1000),
)
def test_it_equals_the_definition(tokens: int, count: int, top_k: int, name: str, seed: int) -> None:
    experts = experts_in(name, count)
    ids, weights = routed(tokens, count, min(top_k, count), seed)
    x = random(tokens, HIDDEN, seed=seed)
    got = grouped_experts(x, experts, ids, weights)
    assert_close(got.double(), by_definition(x, experts, ids, weights), within=1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_one_expert_may_take_every_token_and_others_none(name: str) -> None:
    experts = experts_in(name, 4)
    x, ids = random(40, HIDDEN), torch.full((40, 1), 3)
    weights = torch.ones((40, 1))
    got = grouped_experts(x, experts, ids, weights)
    assert_close(got.double(), by_definition(x, experts, ids, weights), within=1e-5)


@pytest.mark.parametrize("name", ["int4", "int4 with zeros", "fp8", "nvfp4"])
def test_with_rounded_activations_each_product_is_the_quantised_linears(name: str) -> None:
    experts = experts_in(name, 3)
    assert not isinstance(experts, Bf16Experts)
    x, (ids, weights) = random(5, HIDDEN), routed(5, 3, 2, seed=4)
    expected = torch.zeros_like(x)
    for token in range(5):
        for place, expert in enumerate(ids[token].tolist()):
            row = quantised_linear(x[token : token + 1], experts.gate_up.select(expert), Activations.QUANTISED)
            between = F.silu(row[:, :INTERMEDIATE]) * row[:, INTERMEDIATE:]
            part = quantised_linear(between, experts.down.select(expert), Activations.QUANTISED)
            expected[token] += part[0] * weights[token, place]
    kernel = ReferenceExperts(Activations.QUANTISED)
    got = kernel.apply(x, kernel.prepare(experts), ids, weights)
    # SiLU may differ in its last bit, which may take a value to the next step of its type.
    assert_close(got, expected, within=2e-2)
    assert float((got - expected).abs().median()) < 1e-6
    assert not torch.equal(got, grouped_experts(x, experts, ids, weights))


@pytest.mark.parametrize(
    ("name", "activations"),
    [(name, Activations.EXACT) for name in FORMATS] + [(name, Activations.QUANTISED) for name in FORMATS[1:]],
)
def test_a_token_has_the_same_bits_in_every_batch(name: str, activations: Activations) -> None:
    experts = experts_in(name, 6)
    x, (ids, weights) = random(50, HIDDEN), routed(50, 6, 2, seed=3)
    together = grouped_experts(x, experts, ids, weights, activations)
    for token in range(50):
        own = slice(token, token + 1)
        alone = grouped_experts(x[own], experts, ids[own], weights[own], activations)
        assert torch.equal(alone, together[own])


@pytest.mark.parametrize("name", FORMATS)
def test_a_token_that_is_no_number_spoils_nobody_else(name: str) -> None:
    experts = experts_in(name, 3)
    x, (ids, weights) = random(6, HIDDEN), routed(6, 3, 2, seed=5)
    clean = grouped_experts(x, experts, ids, weights)
    x[2, 5] = torch.nan
    spoilt = grouped_experts(x, experts, ids, weights)
    assert spoilt[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(spoilt[others], clean[others])


def test_intermediate_sizes_that_fill_no_vector_keep_the_bits_of_a_token() -> None:
    experts = Bf16Experts(random(2, 2 * 13, 24, seed=1).bfloat16(), random(2, 24, 13, seed=2).bfloat16())
    x, ids, weights = random(9, 24), torch.zeros((9, 1), dtype=torch.int64), torch.ones((9, 1))
    together = grouped_experts(x, experts, ids, weights)
    for token in range(9):
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
    assert experts.nbytes == 2 * (2 * INTERMEDIATE * (HIDDEN // 2 + 2 * HIDDEN // 32) + HIDDEN * (16 + 2 * 2))


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


def test_activations_that_cannot_be_quantised_are_refused_before_any_step() -> None:
    kernel = ReferenceExperts(Activations.QUANTISED)
    with pytest.raises(KernelInputError, match="BF16 experts have no type"):
        kernel.prepare(bf16_experts(2))
    plain = nvfp4_experts(2)
    with pytest.raises(KernelInputError, match="NVFP4 weight without input_scale"):
        kernel.prepare(Nvfp4Experts(plain.gate_up, replace(plain.down, input_scale=None)))


def test_activations_of_another_width_are_named() -> None:
    for name in FORMATS:
        with pytest.raises(KernelInputError, match=r"x has shape \[1, 63\], needed \[any, 64\]"):
            grouped_experts(
                random(1, 63), experts_in(name, 2), torch.zeros((1, 1), dtype=torch.int64), torch.ones(1, 1)
            )
