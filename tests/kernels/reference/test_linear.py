"""The linear layer equals a product in float64, and a row's bits do not depend on its batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.linear import ROW_TILE, linear
from tests.kernels.close import assert_close


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 40), st.integers(1, 300), st.integers(1, 100), st.booleans())
def test_it_equals_a_float64_product(rows: int, inputs: int, outputs: int, bf16: bool) -> None:
    x, weight = random(rows, inputs), random(outputs, inputs, seed=1)
    weight = weight.bfloat16() if bf16 else weight
    expected = x.double() @ weight.double().t()
    assert_close(linear(x, weight).double(), expected, within=1e-6 * inputs)


@pytest.mark.parametrize(("inputs", "outputs"), [(256, 256), (256, 8), (128, 256), (300, 77), (2048, 768)])
def test_a_row_has_the_same_bits_in_every_batch_and_at_every_place(inputs: int, outputs: int) -> None:
    x, weight = random(3 * ROW_TILE + 5, inputs), random(outputs, inputs, seed=1).bfloat16()
    together = linear(x, weight)
    for count in (1, 2, 7, ROW_TILE, ROW_TILE + 1):
        assert torch.equal(linear(x[:count], weight), together[:count])
    order = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(2))
    assert torch.equal(linear(x[order], weight), together[order])


def test_nan_and_infinity_stay_in_their_row() -> None:
    x, weight = random(3, 32), random(4, 32, seed=1).bfloat16()
    clean = linear(x, weight)
    x[1, 0], x[2, 0] = float("nan"), float("inf")
    spoilt = linear(x, weight)
    assert torch.equal(spoilt[0], clean[0])
    assert spoilt[1].isnan().all()
    assert spoilt[2].isinf().all()


def test_inputs_that_cannot_be_taken_are_named() -> None:
    with pytest.raises(KernelInputError, match=r"x has shape \[2, 3\], needed \[any, 4\]"):
        linear(random(2, 3), random(5, 4))
    with pytest.raises(KernelInputError, match=r"x is torch\.bfloat16"):
        linear(random(2, 4).bfloat16(), random(5, 4))
    with pytest.raises(KernelInputError, match=r"weight is torch\.float16"):
        linear(random(2, 4), random(5, 4).half())
