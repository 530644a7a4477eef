"""Plain linear layer in C, as every instruction set has it, against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.linear import linear
from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.linear import linear as reference
from tests.kernels.close import assert_close
from tests.kernels.cpu.variants import VARIANTS, kernels_of

DTYPES = [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 11), inputs=st.integers(1, 70), outputs=st.integers(0, 70), seed=st.integers(0, 99))
def test_equals_the_reference(
    variant: str, dtype: torch.dtype, rows: int, inputs: int, outputs: int, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs).to(dtype)
    with kernels_of(variant):
        assert_close(linear(x, weight), reference(x, weight), within=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch_and_with_every_number_of_threads(
    variant: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(512, 99), torch.randn(77, 99).to(dtype)
    before = torch.get_num_threads()
    with kernels_of(variant):
        together = linear(x, weight)
        alone = torch.cat([linear(x[row : row + 1], weight) for row in range(len(x))])
        try:
            torch.set_num_threads(2)
            by_two = linear(x, weight)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(alone, together)
    assert torch.equal(by_two, together)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("inputs", [5, 37])
def test_nan_and_infinity_stay_in_their_row(variant: str, value: float, inputs: int) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(6, inputs), torch.randn(9, inputs)
    x[4, -1] = value
    with kernels_of(variant):
        result = linear(x, weight)
    expected = reference(x, weight)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
    assert result[:4].isfinite().all()


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(2, 8).bfloat16(), torch.zeros(3, 8), "x is torch.bfloat16"),
        (torch.zeros(2, 8), torch.zeros(3, 8).half(), "weight is torch.float16"),
        (torch.zeros(2, 8), torch.zeros(3, 9), "x has shape"),
        (torch.zeros(8), torch.zeros(3, 8), "x has shape"),
        (torch.zeros(8, 2).t(), torch.zeros(3, 8), "x is not contiguous"),
        (torch.zeros(2, 8), torch.zeros(8, 3).t(), "weight is not contiguous"),
    ],
)
def test_refuses_what_it_cannot_take(x: torch.Tensor, weight: torch.Tensor, message: str) -> None:
    with pytest.raises(KernelInputError, match=message):
        linear(x, weight)
