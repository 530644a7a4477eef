"""FP8, NVFP4 and BF16 experts in Triton equal the reference, weight-only or with quantised activations."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8_block, nvfp4
from octavo_kernels.formats.experts import CanonicalExperts, Fp8BlockExperts, Nvfp4Experts
from octavo_kernels.formats.linear import Activations
from octavo_kernels.formats.nvfp4 import Nvfp4Weight
from octavo_kernels.triton.experts import TritonExperts
from octavo_kernels.triton.experts_tiles import Arithmetic
from tests.kernels.triton.expert_layers import assert_equal_up_to_rounding, bf16_experts, routed

AMPERE, HOPPER, BLACKWELL = 80, 90, 100
FLIPS = 2**-4
"""Where activations are quantised, an intermediate value that bfloat16 moved over the middle between two codes gets the
other one: some of them, each by a step of 2**-3 (e4m3) or 2**-1 (e2m1)."""


def fp8_experts(count: int, hidden: int, intermediate: int) -> Fp8BlockExperts:
    plain = bf16_experts(count, hidden, intermediate)
    return Fp8BlockExperts(fp8_block.quantise(plain.gate_up), fp8_block.quantise(plain.down))


def nvfp4_experts(count: int, hidden: int, intermediate: int, *, calibrated: bool = False) -> Nvfp4Experts:
    plain = bf16_experts(count, hidden, intermediate)
    gate_up, down = nvfp4.quantise(plain.gate_up), nvfp4.quantise(plain.down)
    return Nvfp4Experts(_calibrated(gate_up), _calibrated(down)) if calibrated else Nvfp4Experts(gate_up, down)


def _calibrated(weight: Nvfp4Weight) -> Nvfp4Weight:
    scales = torch.linspace(1e-3, 3e-3, weight.packed.shape[0])
    return dataclasses.replace(weight, input_scale=scales)


SIZES = {
    "tokens": st.integers(1, 18),
    "count": st.integers(1, 3),
    "hidden": st.sampled_from([32, 128, 160]),
    "intermediate": st.sampled_from([32, 96]),
}


@settings(deadline=None, max_examples=3)
@given(**SIZES)
def test_bf16(tokens: int, count: int, hidden: int, intermediate: int) -> None:
    experts = bf16_experts(count, hidden, intermediate)
    step = routed(tokens, count, 1, hidden)
    assert_equal_up_to_rounding(step.by(TritonExperts(AMPERE), experts), step.by_reference(experts))


@settings(deadline=None, max_examples=3)
@given(**SIZES)
def test_fp8_weight_only_before_8_9(tokens: int, count: int, hidden: int, intermediate: int) -> None:
    experts = fp8_experts(count, hidden, intermediate)
    step = routed(tokens, count, 1, hidden)
    assert_equal_up_to_rounding(step.by(TritonExperts(AMPERE), experts), step.by_reference(experts))


@settings(deadline=None, max_examples=3)
@given(**SIZES)
def test_fp8_with_quantised_activations(tokens: int, count: int, hidden: int, intermediate: int) -> None:
    experts = fp8_experts(count, hidden, intermediate)
    step = routed(tokens, count, 1, hidden)
    expected = step.by_reference(experts, Activations.QUANTISED)
    assert_equal_up_to_rounding(step.by(TritonExperts(HOPPER), experts), expected, share=FLIPS)


@settings(deadline=None, max_examples=3)
@given(**SIZES)
def test_nvfp4_weight_only(tokens: int, count: int, hidden: int, intermediate: int) -> None:
    experts = nvfp4_experts(count, hidden, intermediate)
    step = routed(tokens, count, 1, hidden)
    assert_equal_up_to_rounding(step.by(TritonExperts(HOPPER), experts), step.by_reference(experts))


@pytest.mark.parametrize("tokens", [1, 9])
def test_nvfp4_native(tokens: int) -> None:
    experts = nvfp4_experts(2, 128, 128, calibrated=True)
    step = routed(tokens, 2, 2, 128)
    expected = step.by_reference(experts, Activations.QUANTISED)
    assert_equal_up_to_rounding(step.by(TritonExperts(BLACKWELL), experts), expected, share=FLIPS)


@pytest.mark.parametrize(
    ("experts", "architecture"),
    [(fp8_experts(2, 160, 96), AMPERE), (nvfp4_experts(2, 64, 96), HOPPER)],
    ids=["fp8", "nvfp4"],
)
def test_dequantising_first_gives_the_same(experts: CanonicalExperts, architecture: int) -> None:
    kernel = TritonExperts(architecture, dequantise_from=1, scratch_bytes=82_000)
    step = routed(3, 2, 2, experts.down.shape[1] if isinstance(experts.down, torch.Tensor) else hidden_of(experts))
    assert_equal_up_to_rounding(step.by(kernel, experts), step.by_reference(experts))


def hidden_of(experts: CanonicalExperts) -> int:
    assert isinstance(experts, Fp8BlockExperts | Nvfp4Experts)
    return experts.gate_up.in_features


def test_gate_and_up_rows_in_one_block_are_scaled_as_stored() -> None:
    experts = fp8_experts(1, 128, 96)
    experts.gate_up.scales[0, :, 0] = torch.tensor([0.01, 0.0002])
    step = routed(2, 1, 1, 128)
    assert_equal_up_to_rounding(step.by(TritonExperts(AMPERE), experts), step.by_reference(experts))


@pytest.mark.parametrize(
    ("architecture", "calibrated", "hidden", "arithmetic"),
    [
        (100, True, 128, Arithmetic.NVFP4),
        (121, True, 128, Arithmetic.NVFP4),
        (90, True, 128, Arithmetic.NVFP4_AS_BF16),
        (100, False, 128, Arithmetic.NVFP4_AS_BF16),
        (110, True, 128, Arithmetic.NVFP4_AS_BF16),
    ],
)
def test_nvfp4_is_native_only_where_it_can_be(
    architecture: int, calibrated: bool, hidden: int, arithmetic: Arithmetic
) -> None:
    stored = TritonExperts(architecture).prepare(nvfp4_experts(1, hidden, 128, calibrated=calibrated))
    assert stored.gate_up.arithmetic is stored.down.arithmetic is arithmetic


@pytest.mark.parametrize("experts", [bf16_experts(1, 48, 32), nvfp4_experts(1, 32, 16)], ids=["bf16", "nvfp4"])
def test_sizes_that_32_does_not_divide_are_refused(experts: CanonicalExperts) -> None:
    with pytest.raises(KernelInputError, match="needed a multiple of 32"):
        TritonExperts().prepare(experts)


def test_nvfp4_experts_of_which_one_product_cannot_be_native_are_weight_only_in_both() -> None:
    experts = nvfp4_experts(2, 128, 96, calibrated=True)
    step = routed(3, 2, 2, 128)
    assert_equal_up_to_rounding(step.by(TritonExperts(BLACKWELL), experts), step.by_reference(experts))
