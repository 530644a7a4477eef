"""Dense linear layers in Triton equal the reference: BF16 and float32 weights, INT4, FP8 and NVFP4."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8_block, int4, nvfp4
from octavo_kernels.formats.linear import Activations, QuantisedWeight
from octavo_kernels.reference.linear import linear as reference
from octavo_kernels.reference.quantised_linear import quantised_linear
from octavo_kernels.triton.linear import FEW_ROWS, linear, splits_for
from octavo_kernels.triton.quantised_linear import TritonQuantisedLinear
from tests.kernels.triton.expert_layers import assert_equal_up_to_rounding, random

AMPERE, HOPPER, BLACKWELL = 80, 90, 100


def rows_of(count: int, k: int) -> torch.Tensor:
    return random(count, k, seed=5).bfloat16().float()


@settings(deadline=None, max_examples=6)
@given(rows=st.integers(1, 20), n=st.integers(1, 100), k=st.sampled_from([32, 160, 256]))
def test_bf16_equals_the_reference(rows: int, n: int, k: int) -> None:
    x, weight = rows_of(rows, k), random(n, k).bfloat16()
    assert_equal_up_to_rounding(linear(x, weight), reference(x, weight))


@pytest.mark.parametrize(("rows", "k"), [(FEW_ROWS + 1, 32), (3, 33)])
def test_many_rows_and_odd_sizes_go_to_torch(rows: int, k: int) -> None:
    x, weight = rows_of(rows, k), random(8, k).bfloat16()
    assert_equal_up_to_rounding(linear(x, weight), reference(x, weight))


def test_a_float32_weight_is_multiplied_in_float32() -> None:
    x, weight = random(3, 64), random(5, 64)
    assert_equal_up_to_rounding(linear(x, weight), reference(x, weight), share=1e-6)


def test_a_long_k_is_split_and_summed_in_order() -> None:
    assert splits_for(1, 2048, 128) == 4
    assert splits_for(112, 7168, 128) == 3
    assert splits_for(300, 7168, 128) == 1
    x, weight = rows_of(2, 2048), random(3, 2048).bfloat16()
    assert_equal_up_to_rounding(linear(x, weight), reference(x, weight))


def test_an_uneven_split_leaves_nothing_out_and_counts_nothing_twice() -> None:
    x, weight = torch.ones(1, 1152), torch.ones(1, 1152).bfloat16()
    assert linear(x, weight).item() == 1152.0


def test_no_rows_bfloat16_and_what_is_no_number() -> None:
    weight = random(5, 32).bfloat16()
    assert linear(torch.empty(0, 32), weight).shape == (0, 5)
    x = rows_of(3, 32)
    assert torch.equal(linear(x.bfloat16(), weight), linear(x, weight).bfloat16())
    x[1, 4] = float("nan")
    got = linear(x, weight)
    assert got[1].isnan().all()
    assert not got[::2].isnan().any()


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(KernelInputError, match=r"x is torch\.float16"):
        linear(torch.ones(1, 32).half(), torch.ones(1, 32).bfloat16())
    with pytest.raises(KernelInputError, match=r"x has shape \[1, 32\], needed \[any, 64\]"):
        linear(torch.ones(1, 32), torch.ones(1, 64).bfloat16())
    with pytest.raises(KernelInputError, match="weight is not contiguous"):
        linear(torch.ones(1, 32), torch.ones(32, 3).bfloat16().t())


def nvfp4_calibrated(weight: torch.Tensor) -> QuantisedWeight:
    return dataclasses.replace(nvfp4.quantise(weight), input_scale=torch.tensor(0.002))


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize(
    ("weight", "architecture", "activations"),
    [
        (int4.quantise(random(40, 256), 32), AMPERE, Activations.EXACT),
        (int4.quantise(random(200, 128), 128), HOPPER, Activations.EXACT),
        (fp8_block.quantise(random(130, 160)), AMPERE, Activations.EXACT),
        (fp8_block.quantise(random(130, 1152)), HOPPER, Activations.QUANTISED),
        (nvfp4.quantise(random(40, 96)), BLACKWELL, Activations.EXACT),
        (nvfp4_calibrated(random(40, 256)), BLACKWELL, Activations.QUANTISED),
    ],
    ids=["int4/g32", "int4/g128", "fp8/weight-only", "fp8", "nvfp4/weight-only", "nvfp4"],
)
def test_quantised_weights_equal_the_reference(
    rows: int, weight: QuantisedWeight, architecture: int, activations: Activations
) -> None:
    kernel, x = TritonQuantisedLinear(architecture), rows_of(rows, weight.in_features)
    assert_equal_up_to_rounding(kernel.apply(x, kernel.prepare(weight)), quantised_linear(x, weight, activations))


def test_dequantising_first_gives_the_same() -> None:
    weight = int4.quantise(random(40, 64), 32)
    kernel, x = TritonQuantisedLinear(dequantise_from=3), rows_of(3, 64)
    assert_equal_up_to_rounding(kernel.apply(x, kernel.prepare(weight)), quantised_linear(x, weight, Activations.EXACT))


def test_a_stack_and_wrong_activations_are_refused() -> None:
    kernel = TritonQuantisedLinear()
    weight = int4.quantise(random(2, 64), 32)
    with pytest.raises(KernelInputError, match=r"x has shape \[1, 32\]"):
        kernel.apply(torch.ones(1, 32), kernel.prepare(weight))
    with pytest.raises(KernelInputError, match=r"weight.packed has shape \[1, 2, 64\]"):
        kernel.prepare(int4.quantise(random(1, 2, 128), 32))
    assert kernel.apply(torch.empty(0, 64), kernel.prepare(weight)).shape == (0, 2)
