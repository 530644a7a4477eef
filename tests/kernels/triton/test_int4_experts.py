"""INT4 experts in Triton equal the reference, up to the bfloat16 operands of their products."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.experts import Int4Experts
from octavo_kernels.formats.int4 import Int4Weight, quantise
from octavo_kernels.triton.experts import TritonExperts
from tests.kernels.triton.expert_layers import Routed, assert_equal_up_to_rounding, bf16_experts, routed


def int4_experts(count: int, hidden: int, intermediate: int, group: int = 32, *, zeros: bool = False) -> Int4Experts:
    plain = bf16_experts(count, hidden, intermediate)
    experts = Int4Experts(quantise(plain.gate_up, group), quantise(plain.down, group))
    if not zeros:
        return experts
    return Int4Experts(_asymmetric(experts.gate_up), _asymmetric(experts.down))


def _asymmetric(weight: Int4Weight) -> Int4Weight:
    generator = torch.Generator().manual_seed(3)
    zeros = torch.randint(5, 12, weight.scales.shape, generator=generator).to(torch.uint8)
    return dataclasses.replace(weight, zeros=zeros)


@settings(deadline=None, max_examples=6)
@given(
    tokens=st.integers(1, 19),
    count=st.integers(1, 3),
    top_k=st.integers(1, 2),
    hidden=st.sampled_from([32, 64, 96]),
    intermediate=st.sampled_from([32, 96]),
    zeros=st.booleans(),
    seed=st.integers(0, 999),
)
def test_it_equals_the_reference(
    tokens: int, count: int, top_k: int, hidden: int, intermediate: int, zeros: bool, seed: int
) -> None:
    experts = int4_experts(count, hidden, intermediate, zeros=zeros)
    step = routed(tokens, count, min(top_k, count), hidden, seed)
    assert_equal_up_to_rounding(step.by(TritonExperts(), experts), step.by_reference(experts))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_groups_of_every_size_and_whole_tiles(group: int) -> None:
    experts = int4_experts(2, 256, 128, group, zeros=group == 64)
    step = routed(5, 2, 2, 256)
    assert_equal_up_to_rounding(step.by(TritonExperts(), experts), step.by_reference(experts))


def test_one_expert_may_take_every_token_and_others_none() -> None:
    experts = int4_experts(4, 64, 32)
    step = dataclasses.replace(routed(70, 4, 1, 64), ids=torch.full((70, 1), 2))
    assert_equal_up_to_rounding(step.by(TritonExperts(), experts), step.by_reference(experts))


@pytest.mark.parametrize("tokens", [40, 80])
def test_larger_tiles_of_tokens_give_the_same(tokens: int) -> None:
    experts = int4_experts(1, 64, 64)
    step = routed(tokens, 1, 1, 64)
    assert_equal_up_to_rounding(step.by(TritonExperts(), experts), step.by_reference(experts))


def test_dequantising_some_experts_at_a_time_gives_the_same() -> None:
    experts = int4_experts(3, 64, 32, zeros=True)
    kernel = TritonExperts(dequantise_from=1, scratch_bytes=2 * 2 * 128 * 64)
    step = routed(9, 3, 2, 64)
    assert_equal_up_to_rounding(step.by(kernel, experts), step.by_reference(experts))


def test_tokens_done_in_chunks_give_the_same() -> None:
    experts = int4_experts(3, 64, 32)
    step = routed(7, 3, 2, 64)
    chunked = TritonExperts(scratch_bytes=3 * 2 * (4 * 64 + 2 * 32))
    assert torch.equal(step.by(chunked, experts), step.by(TritonExperts(), experts))


def test_an_expert_that_does_not_exist_contributes_nothing() -> None:
    experts = int4_experts(2, 64, 32)
    step = routed(3, 2, 2, 64)
    alone = dataclasses.replace(step, ids=torch.tensor([[0, 1]] * 3), weights=step.weights * torch.tensor([1.0, 0.0]))
    astray = dataclasses.replace(step, ids=torch.tensor([[0, 2], [0, -1], [0, 1 << 40]]))
    assert_equal_up_to_rounding(astray.by(TritonExperts(), experts), alone.by_reference(experts))


def test_values_that_are_no_numbers_stay_in_their_row() -> None:
    experts = int4_experts(2, 64, 32)
    step = routed(4, 2, 1, 64)
    step.x[1, 5], step.x[3, 0] = float("nan"), float("inf")
    got, expected = step.by(TritonExperts(), experts), step.by_reference(experts)
    assert torch.equal(got.isnan(), expected.isnan())
    assert got[1].isnan().all()
    assert_equal_up_to_rounding(got[::2], expected[::2])


def test_no_tokens_give_no_rows_and_bfloat16_stays_bfloat16() -> None:
    experts = int4_experts(2, 64, 32)
    kernel = TritonExperts()
    prepared = kernel.prepare(experts)
    nothing = kernel.apply(torch.empty(0, 64), prepared, torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2))
    assert nothing.shape == (0, 64)
    step = routed(2, 2, 1, 64)
    half = kernel.apply(step.x.bfloat16(), prepared, step.ids, step.weights)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, kernel.apply(step.x, prepared, step.ids, step.weights).bfloat16())


def test_the_stored_layout_is_as_large_as_the_canonical_one_where_rows_fill_tiles() -> None:
    experts = int4_experts(2, 128, 64)
    assert TritonExperts().prepare(experts).nbytes == experts.nbytes


def test_what_the_kernel_cannot_take_is_refused_by_name() -> None:
    experts = int4_experts(2, 64, 32)
    kernel = TritonExperts()
    prepared = kernel.prepare(experts)
    step = routed(2, 2, 1, 64)

    def refused(message: str, **changes: torch.Tensor) -> None:
        given: Routed = dataclasses.replace(step, **changes)
        with pytest.raises(KernelInputError, match=message):
            kernel.apply(given.x, prepared, given.ids, given.weights)

    refused("x is torch.float16", x=step.x.half())
    refused("ids is torch.int32", ids=step.ids.int())
    refused(r"x has shape \[2, 32\]", x=step.x[:, :32])
    refused("x is not contiguous", x=step.x.t().contiguous().t())
    refused(r"weights has shape \[2, 2\]", weights=torch.ones(2, 2))
    refused("names no expert", ids=step.ids[:, :0], weights=step.weights[:, :0])
    with pytest.raises(KernelInputError, match="group size is 16"):
        kernel.prepare(int4_experts(2, 64, 32, 16))
    with pytest.raises(KernelInputError, match="1025 experts"):
        kernel.prepare(int4_experts(1025, 32, 32))
