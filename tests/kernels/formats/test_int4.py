"""INT4 groups: layout bit for bit, rounding error bounds, and refusals that name the size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.int4 import Int4Weight, QuantisationError, dequantise, integers, pack, quantise, unpack

BF16_HALF_STEP = 2.0**-8
"""Largest relative change of a value by rounding to bfloat16 (8 bits of precision)."""


def random_weight(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_low_nibble_holds_the_even_k_and_eight_stands_for_zero() -> None:
    values = torch.tensor([[-8, 7, 0, -1]], dtype=torch.int8)
    assert pack(values).tolist() == [[0xF0, 0x78]]
    assert torch.equal(unpack(pack(values)), values)


def test_every_pair_of_nibbles_survives_packing() -> None:
    values = torch.cartesian_prod(torch.arange(-8, 8), torch.arange(-8, 8)).to(torch.int8)
    assert torch.equal(unpack(pack(values)), values)


def test_a_weight_is_value_times_scale_of_its_group() -> None:
    packed = torch.tensor([[0x9F, 0x08]], dtype=torch.uint8)
    weight = Int4Weight(packed, torch.tensor([[0.5, 4.0]], dtype=torch.bfloat16), group_size=2)
    assert dequantise(weight).tolist() == [[3.5, 0.5, 0.0, -32.0]]


def test_scales_are_per_output_row_and_group() -> None:
    weight = quantise(random_weight(3, 5, 64), 32)
    assert weight.packed.shape == (3, 5, 32)
    assert weight.scales.shape == (3, 5, 2)
    largest = random_weight(3, 5, 64).view(3, 5, 2, 32).abs().amax(-1)
    assert torch.equal(weight.scales, (largest / 7.5).bfloat16())


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 5),
    groups=st.integers(1, 3),
    group_size=st.sampled_from([2, 32, 64, 128]),
    magnitude=st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 2**31),
)
def test_no_weight_moves_by_more_than_half_a_step(
    rows: int, groups: int, group_size: int, magnitude: float, seed: int
) -> None:
    original = random_weight(rows, groups * group_size, seed=seed) * magnitude
    quantised = quantise(original, group_size)
    steps = quantised.scales.float().repeat_interleave(group_size, dim=-1)
    # The scale itself is rounded: the group's largest value may lie that much beyond 7.5 steps.
    allowed = steps * (0.5 + 7.5 * BF16_HALF_STEP)
    assert ((dequantise(quantised) - original).abs() <= allowed * 1.0001).all()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), group_size=st.sampled_from([2, 32]))
def test_quantising_what_was_quantised_keeps_the_values_close(seed: int, group_size: int) -> None:
    once = dequantise(quantise(random_weight(2, 64, seed=seed), group_size))
    twice = dequantise(quantise(once, group_size))
    steps = quantise(once, group_size).scales.float().repeat_interleave(group_size, dim=-1)
    assert ((twice - once).abs() <= steps).all()


def test_a_group_of_zeros_stays_zero() -> None:
    weight = torch.zeros(2, 64)
    weight[0, 32:] = 1.0
    assert dequantise(quantise(weight, 32))[:, :32].abs().max() == 0
    assert dequantise(quantise(weight, 32))[1].abs().max() == 0


def test_smaller_groups_lose_less() -> None:
    weight = random_weight(64, 128)
    losses = [float((dequantise(quantise(weight, size)) - weight).square().mean()) for size in (32, 64, 128)]
    assert losses == sorted(losses)


def test_slices_of_a_stack_are_filled_in_place() -> None:
    stack = Int4Weight.empty(2, 4, 64, group_size=32, device=torch.device("cpu"))
    parts = [quantise(random_weight(2, 64, seed=seed), 32) for seed in range(4)]
    for index, part in enumerate(parts):
        stack.select(index // 2).rows(2 * (index % 2), 2 * (index % 2) + 2).store(part)
    expected = torch.stack([dequantise(part) for part in parts]).view(2, 4, 64)
    assert torch.equal(dequantise(stack), expected)
    assert stack.nbytes == 2 * 4 * (32 + 2 * 2)


@pytest.mark.parametrize("size", [1, 31, 33, 48, 100])
def test_a_size_that_does_not_divide_is_refused_with_both_numbers(size: int) -> None:
    with pytest.raises(QuantisationError, match=f"{size} input features do not divide by the INT4 group size 32"):
        quantise(torch.ones(2, size), 32)


@pytest.mark.parametrize("group_size", [-2, 0, 1, 3])
def test_an_impossible_group_size_is_refused(group_size: int) -> None:
    with pytest.raises(QuantisationError, match=f"group size {group_size} is not an even number"):
        quantise(torch.ones(2, 64), group_size)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_without_a_value_are_refused(value: float) -> None:
    weight = torch.ones(2, 64)
    weight[1, 40] = value
    with pytest.raises(QuantisationError, match="NaN or infinite"):
        quantise(weight, 32)


def test_parts_that_do_not_fit_together_are_refused_by_name() -> None:
    with pytest.raises(KernelInputError, match=r"scales has shape \[2, 3\], needed \[2, 2\]"):
        Int4Weight(torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.bfloat16), 32)
    with pytest.raises(KernelInputError, match=r"packed is torch\.int8"):
        Int4Weight(torch.zeros(2, 32, dtype=torch.int8), torch.zeros(2, 2, dtype=torch.bfloat16), 32)
    with pytest.raises(KernelInputError, match="weight has group size 64, needed 32"):
        quantise(torch.ones(2, 64), 32).store(quantise(torch.ones(2, 64), 64))
    with pytest.raises(KernelInputError, match="3 entries along K"):
        pack(torch.zeros(1, 3, dtype=torch.int8))


def asymmetric(seed: int = 0) -> Int4Weight:
    return quantise(random_weight(3, 4, 64, seed=seed) + 1, 32, asymmetric=True)


def test_a_zero_point_is_taken_off_before_the_scale() -> None:
    packed = torch.tensor([[0x9F, 0x08]], dtype=torch.uint8)
    zeros = torch.tensor([[15, 0]], dtype=torch.uint8)
    weight = Int4Weight(packed, torch.tensor([[0.5, 4.0]], dtype=torch.bfloat16), 2, zeros)
    assert dequantise(weight).tolist() == [[0.0, -3.0, 32.0, 0.0]]
    assert integers(weight).tolist() == [[0, -6, 8, 0]]
    assert weight.nbytes == 2 + 4 + 2


def test_zero_points_of_eight_say_symmetric() -> None:
    plain = quantise(random_weight(3, 4, 64), 32)
    spelt_out = Int4Weight(plain.packed, plain.scales, 32, torch.full(plain.scales.shape, 8, dtype=torch.uint8))
    assert torch.equal(dequantise(plain), dequantise(spelt_out))


@settings(deadline=None, max_examples=40)
@given(
    group_size=st.sampled_from([2, 32, 128]),
    offset=st.sampled_from([-3.0, -0.5, 0.0, 0.5, 3.0]),
    magnitude=st.sampled_from([1e-30, 1.0, 1e6]),
    seed=st.integers(0, 2**31),
)
def test_asymmetric_rounding_moves_no_weight_by_more_than_half_a_step(
    group_size: int, offset: float, magnitude: float, seed: int
) -> None:
    original = (random_weight(3, 2 * group_size, seed=seed) + offset) * magnitude
    weight = quantise(original, group_size, asymmetric=True)
    steps = weight.scales.float().repeat_interleave(group_size, dim=-1)
    allowed = steps * (0.5 + 15 * BF16_HALF_STEP)
    assert ((dequantise(weight) - original).abs() <= allowed * 1.0001).all()


def test_zero_stays_zero_and_one_sided_groups_lose_less_than_symmetric_ones() -> None:
    weight = random_weight(8, 128).abs()
    weight[:, 3] = 0
    got = dequantise(quantise(weight, 32, asymmetric=True))
    assert got[:, 3].abs().max() == 0
    assert (got - weight).square().mean() < (dequantise(quantise(weight, 32)) - weight).square().mean() / 2
    assert dequantise(quantise(torch.zeros(2, 64), 32, asymmetric=True)).abs().max() == 0


def test_zero_points_go_with_their_slice() -> None:
    stack = Int4Weight.empty(2, 3, 4, 64, group_size=32, device=torch.device("cpu"), zero_points=True)
    first, plain = asymmetric(), quantise(random_weight(3, 4, 64), 32)
    stack.select(0).store(first)
    stack.select(1).store(plain)
    assert torch.equal(dequantise(stack.select(0)), dequantise(first))
    assert torch.equal(dequantise(stack.select(1)), dequantise(plain))
    assert torch.equal(dequantise(first.select(1).rows(1, 3)), dequantise(first)[1, 1:3])


def test_memory_without_zero_points_takes_no_asymmetric_weight() -> None:
    stack = Int4Weight.empty(3, 4, 64, group_size=32, device=torch.device("cpu"))
    with pytest.raises(KernelInputError, match="weight has zero points, the memory to store it in has none"):
        stack.store(asymmetric())
    with pytest.raises(KernelInputError, match=r"zeros has shape \[3, 4, 1\], needed \[3, 4, 2\]"):
        Int4Weight(asymmetric().packed, asymmetric().scales, 32, torch.zeros(3, 4, 1, dtype=torch.uint8))
