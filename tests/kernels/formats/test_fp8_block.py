"""FP8 blocks: a scale per 128 x 128 of a weight, and per 128 of an activation row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8, fp8_block
from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import QuantisationError


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_weight_is_value_times_the_scale_of_its_block() -> None:
    values = torch.ones(130, 257).to(fp8.DTYPE)
    weight = Fp8BlockWeight(values, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    got = fp8_block.dequantise(weight)
    assert got[127, [0, 127, 128, 255, 256]].tolist() == [1, 1, 2, 2, 3]
    assert got[128, [0, 127, 128, 255, 256]].tolist() == [4, 4, 5, 5, 6]


@settings(deadline=None, max_examples=25)
@given(
    stack=st.lists(st.integers(1, 2), max_size=1),
    n=st.integers(1, 140) | st.integers(255, 257),
    k=st.integers(1, 140) | st.integers(255, 257),
    magnitude=st.sampled_from([1e-30, 1.0, 1e30]),
)
def test_rounding_moves_no_weight_by_more_than_a_sixteenth(stack: list[int], n: int, k: int, magnitude: float) -> None:
    original = random(*stack, n, k) * magnitude
    weight = fp8_block.quantise(original)
    for row in range(0, n, 128):
        for column in range(0, k, 128):
            block = original[..., row : row + 128, column : column + 128].abs().flatten(-2).amax(-1)
            assert torch.equal(weight.scales[..., row // 128, column // 128], block / 448)
    step = weight.scales.amax() * 2.0**-10
    assert ((fp8_block.dequantise(weight) - original).abs() <= original.abs() / 15.9 + step).all()


def test_zeros_stay_zero_and_what_is_no_number_is_refused() -> None:
    weight = fp8_block.quantise(torch.zeros(3, 5))
    assert weight.scales.tolist() == [[1.0]]
    assert fp8_block.dequantise(weight).abs().max() == 0
    with pytest.raises(QuantisationError, match="NaN or infinite"):
        fp8_block.quantise(torch.full((2, 2), torch.inf))
    with pytest.raises(KernelInputError, match=r"weight is torch\.int64 \[2, 2\]"):
        fp8_block.quantise(torch.ones(2, 2, dtype=torch.int64))


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(0, 4), k=st.integers(1, 300))
def test_activations_have_a_scale_per_row_and_128_elements(rows: int, k: int) -> None:
    x = random(rows, k) * 100
    values, scales = fp8_block.quantise_activations(x)
    assert values.shape == x.shape
    assert scales.shape == (rows, -(-k // 128))
    for row in range(rows):
        for group in range(scales.shape[1]):
            own = slice(group * 128, group * 128 + 128)
            expected = x[row, own].abs().max() / 448
            assert torch.equal(scales[row, group], expected)
            assert torch.equal(fp8.decode(values[row, own]), (x[row, own] / expected).to(fp8.DTYPE).float())


def test_activations_that_are_no_numbers_stay_in_their_place() -> None:
    x = torch.ones(2, 256)
    x[0, 3], x[1, 200] = torch.nan, -torch.inf
    values, scales = fp8_block.quantise_activations(x)
    back = fp8.decode(values) * scales.repeat_interleave(128, dim=1)
    assert back[0].isnan().nonzero().flatten().tolist() == [3]
    assert back[0, [0, 255]].tolist() == pytest.approx([1.0, 1.0])
    largest = torch.finfo(torch.float32).max
    assert float(back[1, 200]) == pytest.approx(-largest)
    assert back[1].isfinite().all()
    assert back[1, 128] == 0


def test_a_scale_that_would_be_subnormal_is_one() -> None:
    tiny = torch.finfo(torch.float32).tiny
    x = torch.tensor([[0.0, 0.0], [0.0, tiny * 447], [0.0, tiny * 448], [torch.nan, torch.nan]])
    assert fp8.dynamic_scale(x).tolist() == [1.0, 1.0, tiny, 1.0]
