"""Sigmoid and SiLU: their definition, and the same bits wherever an element lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from octavo_kernels.reference.activation import sigmoid, silu
from tests.kernels.close import assert_close


@pytest.mark.parametrize("function", [sigmoid, silu])
def test_an_element_has_the_same_bits_in_a_tensor_of_any_length(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(200, generator=torch.Generator().manual_seed(0)) * 5
    whole = function(x)
    for length in range(1, 40):
        for start in range(0, 160, 13):
            part = slice(start, start + length)
            assert torch.equal(function(x[part]), whole[part])


def test_they_equal_their_definitions_to_the_ends_of_float32() -> None:
    x = torch.linspace(-120, 120, 4001)
    assert_close(sigmoid(x), 1 / (1 + (-x.double()).exp()), within=1e-7)
    assert_close(silu(x), x.double() / (1 + (-x.double()).exp()), within=1e-5)
    ends = torch.tensor([-torch.inf, -1e38, 1e38, torch.inf, torch.nan])
    assert sigmoid(ends)[:4].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert silu(ends)[1:4].tolist() == [0.0, float(ends[2]), torch.inf]
    assert silu(ends).isnan().tolist() == [True, False, False, False, True]
