"""Linear layers over quantised weights in C, as every instruction set has them, against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.quantised_linear import CpuQuantisedLinear
from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8_block, int4, nvfp4
from octavo_kernels.formats.linear import Activations, QuantisedWeight
from octavo_kernels.formats.nvfp4 import Nvfp4Weight
from octavo_kernels.reference.quantised_linear import quantised_linear
from tests.kernels.close import assert_close
from tests.kernels.cpu.variants import VARIANTS, kernels_of

EXACT, ROUNDED = Activations.EXACT, Activations.QUANTISED
FORMS = [("int4", EXACT), ("int4", ROUNDED), ("int4 with zero points", EXACT), ("int4 with zero points", ROUNDED)]
FORMS += [("fp8", EXACT), ("nvfp4", EXACT)]


def weight_of(form: str, outputs: int, inputs: int, group: int = 32) -> QuantisedWeight:
    weight = torch.randn(outputs, inputs) / inputs**0.5
    match form:
        case "fp8":
            return fp8_block.quantise(weight)
        case "nvfp4":
            return nvfp4.quantise(weight)
        case _:
            return int4.quantise(weight, group, asymmetric="zero" in form)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("form", "activations"), FORMS)
@settings(max_examples=10, deadline=None)
@given(rows=st.integers(0, 9), units=st.integers(1, 9), outputs=st.integers(1, 150), seed=st.integers(0, 99))
def test_equals_the_reference(
    variant: str, form: str, activations: Activations, rows: int, units: int, outputs: int, seed: int
) -> None:
    torch.manual_seed(seed)
    inputs = units * (33 if form == "fp8" else 32)
    x, weight = torch.randn(rows, inputs), weight_of(form, outputs, inputs)
    with kernels_of(variant):
        kernel = CpuQuantisedLinear(activations)
        result = kernel.apply(x, kernel.prepare(weight))
    # The integers are those of the reference to the last one, so that rounded activations are as close as exact ones.
    assert_close(result, quantised_linear(x, weight, activations), within=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_largest_integers_do_not_saturate(variant: str) -> None:
    weight = int4.Int4Weight(
        torch.full((3, 128), 0xFF, dtype=torch.uint8),
        torch.ones(3, 2, dtype=torch.bfloat16),
        128,
        torch.zeros(3, 2, dtype=torch.uint8),
    )
    x = torch.full((1, 256), 127.0)
    with kernels_of(variant):
        kernel = CpuQuantisedLinear(ROUNDED)
        assert kernel.apply(x, kernel.prepare(weight)).tolist() == [[127.0 * 15 * 256] * 3]
        assert kernel.apply(-x, kernel.prepare(weight)).tolist() == [[-127.0 * 15 * 256] * 3]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("form", "activations"), FORMS)
def test_a_row_has_the_same_bits_in_every_batch_and_with_every_number_of_threads(
    variant: str, form: str, activations: Activations
) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(70, 96), weight_of(form, 77, 96)
    before = torch.get_num_threads()
    with kernels_of(variant):
        kernel = CpuQuantisedLinear(activations)
        prepared = kernel.prepare(weight)
        together = kernel.apply(x, prepared)
        alone = torch.cat([kernel.apply(x[row : row + 1], prepared) for row in range(len(x))])
        try:
            torch.set_num_threads(2)
            by_two = kernel.apply(x, prepared)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(alone, together)
    assert torch.equal(by_two, together)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("form", "activations"), FORMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_stay_in_their_row(variant: str, form: str, activations: Activations, value: float) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(5, 64), weight_of(form, 9, 64)
    x[3, 60] = value
    with kernels_of(variant):
        kernel = CpuQuantisedLinear(activations)
        result = kernel.apply(x, kernel.prepare(weight))
    expected = quantised_linear(x, weight, activations)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
    assert result[:3].isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("code", range(16))
def test_every_nvfp4_code_and_every_scale_is_exact(variant: str, code: int) -> None:
    scales = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)[:, None]
    weight = Nvfp4Weight(torch.full((256, 8), code * 0x11, dtype=torch.uint8), scales, torch.tensor(2.0))
    x = torch.zeros(1, 16)
    x[0, 11] = 1.0
    with kernels_of(variant):
        kernel = CpuQuantisedLinear()
        result = kernel.apply(x, kernel.prepare(weight))
    assert torch.equal(result.nan_to_num(77.0), quantised_linear(x, weight, EXACT).nan_to_num(77.0))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 64).bfloat16(), "x is torch.bfloat16"),
        (torch.zeros(2, 32), "x has shape"),
        (torch.zeros(64, 2).t(), "x is not contiguous"),
    ],
)
def test_refuses_what_it_cannot_take(x: torch.Tensor, message: str) -> None:
    kernel = CpuQuantisedLinear()
    prepared = kernel.prepare(weight_of("int4", 3, 64))
    with pytest.raises(KernelInputError, match=message):
        kernel.apply(x, prepared)


def test_refuses_a_stack_of_weights() -> None:
    with pytest.raises(KernelInputError, match="weight has shape"):
        CpuQuantisedLinear().prepare(int4.quantise(torch.zeros(2, 3, 32), 32))
