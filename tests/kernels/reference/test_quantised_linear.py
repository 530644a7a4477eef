"""Quantised linears equal a float64 product of what is stored, whatever the size, row by row and batch by batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8_block, int4, nvfp4
from octavo_kernels.formats.linear import Activations, QuantisedWeight
from octavo_kernels.reference.quantised_linear import (
    ReferenceQuantisedLinear,
    quantise_to_int8,
    quantised_linear,
)
from tests.kernels.close import assert_close

INPUT_SCALE = 4.0 / (6 * 448)
FORMATS = ("int4", "int4 with zeros", "fp8", "nvfp4")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantised(weight: torch.Tensor, name: str, group_size: int = 16) -> QuantisedWeight:
    if name.startswith("int4"):
        return int4.quantise(weight, group_size, asymmetric=name != "int4")
    if name == "fp8":
        return fp8_block.quantise(weight)
    return replace(nvfp4.quantise(weight), input_scale=torch.tensor(INPUT_SCALE))


def stored_weight(weight: QuantisedWeight) -> torch.Tensor:
    if isinstance(weight, int4.Int4Weight):
        return int4.dequantise(weight).double()
    if isinstance(weight, fp8_block.Fp8BlockWeight):
        return fp8_block.dequantise(weight).double()
    return nvfp4.dequantise(weight).double()


def rounded(x: torch.Tensor, weight: QuantisedWeight) -> torch.Tensor:
    """What the activations are after rounding, in float64."""
    if isinstance(weight, int4.Int4Weight):
        groups = x.view(x.shape[0], x.shape[1] // weight.group_size, weight.group_size)
        scale = (groups.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-38)
        return ((groups / scale).round().double() * scale).view_as(x)
    if isinstance(weight, fp8_block.Fp8BlockWeight):
        values, scales = fp8_block.quantise_activations(x)
        return values.double() * scales.double().repeat_interleave(128, dim=1)[:, : x.shape[1]]
    scale = torch.tensor(INPUT_SCALE)
    return nvfp4.block_values(*nvfp4.quantise_activations(x, scale)).double() * scale


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(FORMATS),
    activations=st.sampled_from(list(Activations)),
    rows=st.integers(0, 35),
    groups=st.integers(1, 18),
    outputs=st.integers(1, 40) | st.integers(127, 130),
    group_size=st.sampled_from([2, 16, 32, 128]),
)
def test_it_equals_the_product_of_what_is_stored(
    name: str, activations: Activations, rows: int, groups: int, outputs: int, group_size: int
) -> None:
    size = group_size if name.startswith("int4") else 16
    x, weight = random(rows, groups * size), quantised(random(outputs, groups * size, seed=1), name, size)
    left = x.double() if activations is Activations.EXACT else rounded(x, weight)
    assert_close(
        quantised_linear(x, weight, activations).double(), left @ stored_weight(weight).t(), within=1e-6 * groups * size
    )


@pytest.mark.parametrize("inputs", [1, 127, 129, 300])
@pytest.mark.parametrize("activations", list(Activations))
def test_fp8_blocks_need_not_divide(inputs: int, activations: Activations) -> None:
    x, weight = random(3, inputs), fp8_block.quantise(random(5, inputs, seed=1))
    left = x.double() if activations is Activations.EXACT else rounded(x, weight)
    got = quantised_linear(x, weight, activations).double()
    assert_close(got, left @ stored_weight(weight).t(), within=1e-4)


@pytest.mark.parametrize("activations", list(Activations))
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_in_every_batch(name: str, activations: Activations) -> None:
    x, weight = random(40, 272), quantised(random(77, 272, seed=1), name)
    kernel = ReferenceQuantisedLinear(activations)
    prepared = kernel.prepare(weight)
    assert prepared is weight
    together = kernel.apply(x, prepared)
    for row in range(40):
        assert torch.equal(kernel.apply(x[row : row + 1], prepared)[0], together[row])


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_the_activations_costs_little_and_something(name: str) -> None:
    x, weight = random(8, 256), quantised(random(64, 256, seed=1), name)
    exact = quantised_linear(x, weight, Activations.EXACT)
    off = float((quantised_linear(x, weight, Activations.QUANTISED) - exact).norm() / exact.norm())
    low, high = {"int4": (1e-3, 1e-2), "int4 with zeros": (1e-3, 1e-2), "fp8": (0.01, 0.04), "nvfp4": (0.05, 0.15)}[
        name
    ]
    assert low < off < high


@pytest.mark.parametrize("activations", list(Activations))
@pytest.mark.parametrize("name", FORMATS)
def test_nan_stays_in_its_row(name: str, activations: Activations) -> None:
    x, weight = random(3, 256), quantised(random(9, 256, seed=1), name)
    clean = quantised_linear(x, weight, activations)
    x[1, 200] = torch.nan
    spoilt = quantised_linear(x, weight, activations)
    assert spoilt[1].isnan().all()
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("activations", list(Activations))
@pytest.mark.parametrize("name", FORMATS)
def test_infinity_stays_in_its_row_and_never_passes_for_an_ordinary_number(name: str, activations: Activations) -> None:
    x, weight = random(3, 256), quantised(random(9, 256, seed=1).abs() + 0.1, name)
    clean = quantised_linear(x, weight, activations)
    x[1, 200] = torch.inf
    spoilt = quantised_linear(x, weight, activations)
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]])
    if activations is Activations.EXACT:
        assert (spoilt[1] == torch.inf).all()
    elif name.startswith("int4"):
        assert spoilt[1].isnan().all()
    elif name == "fp8":
        assert (spoilt[1] > 1e36).all()
    else:
        # NVFP4 saturates at 6 * 448 * input_scale, which calibration took for the largest activation.
        assert spoilt[1].isfinite().all()


def test_int8_rounding_is_to_nearest_even_with_a_scale_per_row_and_group() -> None:
    x = torch.tensor(
        [
            [127.0, 0.5, 1.5, -2.5, 254.0, 1.0, 3.0, -1.0],
            [torch.inf, 1.0, 0.0, 0.0] + [0.0] * 4,
            [torch.nan, 1.0, 0.0, 9.0] * 2,
        ]
    )
    values, scales = quantise_to_int8(x, 4)
    assert values.dtype == torch.int8
    assert values[0].tolist() == [127, 0, 2, -2, 127, 0, 2, 0]
    assert values[1:].tolist() == [[0] * 8] * 2
    assert scales[0].tolist() == [1.0, 2.0]
    assert scales.isnan().tolist() == [[False, False], [True, False], [True, True]]
    assert float(scales[1, 1]) == 1.0


def test_groups_of_any_size_are_summed_exactly() -> None:
    size = 16384
    weight = int4.Int4Weight(
        torch.full((1, size // 2), 0xFF, dtype=torch.uint8),
        torch.ones((1, 1), dtype=torch.bfloat16),
        size,
        torch.zeros((1, 1), dtype=torch.uint8),
    )
    x = torch.full((1, size), 127.0)
    x[0, 0] = 126.0
    expected = float(torch.tensor(15 * (127 * size - 1), dtype=torch.float64).float())
    assert float(quantised_linear(x, weight, Activations.QUANTISED)) == expected


def test_what_cannot_be_taken_is_named() -> None:
    plain = nvfp4.quantise(random(4, 32))
    with pytest.raises(KernelInputError, match="NVFP4 weight without input_scale"):
        ReferenceQuantisedLinear(Activations.QUANTISED).prepare(plain)
    with pytest.raises(KernelInputError, match="NVFP4 weight without input_scale"):
        quantised_linear(random(1, 32), plain, Activations.QUANTISED)
    with pytest.raises(KernelInputError, match=r"x has shape \[1, 31\], needed \[any, 32\]"):
        quantised_linear(random(1, 31), plain, Activations.EXACT)
    with pytest.raises(KernelInputError, match=r"x is torch\.bfloat16"):
        quantised_linear(random(1, 32).bfloat16(), plain, Activations.EXACT)
    with pytest.raises(KernelInputError, match=r"weight has shape \[2, 4, 16\]"):
        ReferenceQuantisedLinear().prepare(nvfp4.quantise(random(2, 4, 32)))
