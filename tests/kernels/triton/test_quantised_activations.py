"""Activations are rounded to FP8 and NVFP4 with the bits of the reference."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels.formats import fp8_block, nvfp4
from octavo_kernels.triton.experts_activations import to_fp8, to_nvfp4
from tests.kernels.triton.expert_layers import random


def with_extremes(rows: int, columns: int) -> torch.Tensor:
    """Numbers of every size, a row of zeros, one of subnormal numbers, infinities and NaN."""
    x = random(rows, columns) * torch.logspace(-6, 4, rows)[:, None]
    x[1], x[2] = 0.0, 1e-40
    x[3, 5], x[4, 9], x[5, 0] = float("inf"), -float("inf"), float("nan")
    return x


@pytest.mark.parametrize("columns", [32, 128, 1200])
def test_fp8_has_the_bits_of_the_reference(columns: int) -> None:
    x = with_extremes(8, columns)
    values, scales = to_fp8(x)
    expected, expected_scales = fp8_block.quantise_activations(x)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(without_sign_of_nan(values), without_sign_of_nan(expected))


def without_sign_of_nan(values: torch.Tensor) -> torch.Tensor:
    codes = values.view(torch.uint8)
    return torch.where(codes == 0xFF, 0x7F, codes)


def test_nvfp4_has_the_bits_of_the_reference_with_each_expert_s_own_scale() -> None:
    x = with_extremes(8, 1056)
    ids = torch.tensor([[0, 1]] * 8)
    input_scales = torch.tensor([0.01, 0.3])
    codes, scales = to_nvfp4(x, ids, input_scales, 2)
    for expert in (0, 1):
        expected, expected_scales = nvfp4.quantise_activations(x, input_scales[expert])
        assert torch.equal(scales[expert::2].view(torch.uint8), expected_scales.view(torch.uint8))
        assert torch.equal(codes[expert::2], expected)


def test_a_slot_without_an_expert_is_left_alone() -> None:
    x, one = random(2, 32), torch.ones(1)
    codes, scales = to_nvfp4(x, torch.tensor([[1, 0], [-1, 0]]), one, 2)
    expected, expected_scales = nvfp4.quantise_activations(x, one[0])
    assert torch.equal(codes[1::2], expected)
    assert torch.equal(scales[1::2].view(torch.uint8), expected_scales.view(torch.uint8))
