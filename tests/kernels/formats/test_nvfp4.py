"""NVFP4: every code, rounding with ties and beyond the end, block scales, and what NaN becomes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8, nvfp4
from octavo_kernels.formats.int4 import QuantisationError
from octavo_kernels.formats.nvfp4 import Nvfp4Weight

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
ONE = torch.ones(())


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def nearest(values: torch.Tensor) -> torch.Tensor:
    """By trying all: the nearest value, of two equally near the one with the even code."""
    distance = (values.double().abs().clamp(max=8).unsqueeze(-1) - torch.tensor(VALUES, dtype=torch.float64)).abs()
    # Half of the least distance between a middle and its float32 neighbour makes the even one nearer.
    distance += torch.tensor([0.0, 2.0**-27] * 4, dtype=torch.float64)
    return torch.tensor(VALUES)[distance.argmin(-1)] * values.sign()


def test_every_code_is_its_value_and_is_rounded_to_itself() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert nvfp4.decode(codes).tolist() == VALUES + [-value for value in VALUES]
    assert torch.equal(nvfp4.encode(nvfp4.decode(codes)), codes)


def test_ties_go_to_the_even_code_and_their_neighbours_to_the_nearer() -> None:
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    below, above = middles.nextafter(torch.zeros(())), middles.nextafter(torch.tensor(9.0))
    assert nvfp4.decode(nvfp4.encode(middles)).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert nvfp4.decode(nvfp4.encode(below)).tolist() == VALUES[:-1]
    assert nvfp4.decode(nvfp4.encode(above)).tolist() == VALUES[1:]


def test_rounding_is_to_nearest_even_and_saturates_at_six() -> None:
    bfloat16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    values = torch.cat((bfloat16[bfloat16.isfinite()], random(20_000) * 4))
    assert torch.equal(nvfp4.decode(nvfp4.encode(values)), nearest(values))


def test_what_lies_beyond_is_six_and_nan_is_plus_six() -> None:
    values = torch.tensor([7.0, -1e30, torch.inf, -torch.inf, torch.nan, -torch.nan])
    assert nvfp4.decode(nvfp4.encode(values)).tolist() == [6.0, -6.0, 6.0, -6.0, 6.0, 6.0]


def test_the_low_nibble_holds_the_even_k() -> None:
    codes = torch.tensor([[1, 15, 0, 9]], dtype=torch.uint8)
    assert nvfp4.pack(codes).tolist() == [[0xF1, 0x90]]
    every = torch.cartesian_prod(torch.arange(16), torch.arange(16)).to(torch.uint8)
    assert torch.equal(nvfp4.unpack(nvfp4.pack(every)), every)
    with pytest.raises(KernelInputError, match="3 entries along K"):
        nvfp4.pack(torch.zeros(1, 3, dtype=torch.uint8))


def test_a_weight_is_value_times_block_scale_times_global_scale() -> None:
    packed = torch.full((2, 1, 16), 0x2F, dtype=torch.uint8)
    scales = torch.tensor([[[2.0, 0.5]], [[448.0, 1.0]]]).to(fp8.DTYPE)
    weight = Nvfp4Weight(packed, scales, torch.tensor([3.0, 0.25]))
    row = nvfp4.dequantise(weight)[:, 0]
    assert row[0, [0, 1, 16, 17]].tolist() == [-36.0, 6.0, -9.0, 1.5]
    assert row[1, [0, 1, 16, 17]].tolist() == [-672.0, 112.0, -1.5, 0.25]


@settings(deadline=None, max_examples=20)
@given(
    stack=st.lists(st.integers(1, 3), max_size=2),
    rows=st.integers(1, 5),
    blocks=st.integers(1, 5),
    magnitude=st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 1000),
)
def test_no_weight_moves_by_more_than_its_step(
    stack: list[int], rows: int, blocks: int, magnitude: float, seed: int
) -> None:
    original = random(*stack, rows, blocks * 16, seed=seed) * magnitude
    weight = nvfp4.quantise(original)
    largest = original.abs().flatten(-2).amax(-1)
    assert torch.equal(weight.global_scale, largest / (6 * 448))
    # Between 4 and 6 the step is 2 scales; a scale rounded down by 1/16 cuts 6/16 of one off on top.
    scale = fp8.decode(weight.scales).repeat_interleave(16, dim=-1) * weight.global_scale[..., None, None]
    tiny = weight.global_scale[..., None, None] * 2.0**-9
    assert ((nvfp4.dequantise(weight) - original).abs() <= 1.001 * torch.maximum(scale, tiny)).all()


def test_a_weight_of_zeros_stays_zero_and_one_that_is_no_number_is_refused() -> None:
    assert nvfp4.dequantise(nvfp4.quantise(torch.zeros(2, 32))).abs().max() == 0
    for value in (torch.nan, torch.inf):
        weight = torch.ones(2, 32)
        weight[1, 3] = value
        with pytest.raises(QuantisationError, match="NaN or infinite"):
            nvfp4.quantise(weight)
    with pytest.raises(KernelInputError, match="24 input features do not divide by the NVFP4 block of 16"):
        nvfp4.quantise(torch.ones(2, 24))


def activations(x: torch.Tensor, input_scale: torch.Tensor = ONE) -> torch.Tensor:
    return nvfp4.block_values(*nvfp4.quantise_activations(x, input_scale)) * input_scale


@settings(deadline=None, max_examples=20)
@given(rows=st.integers(0, 4), blocks=st.integers(1, 4), scale=st.sampled_from([0.01, 1.0, 3.0]))
def test_activations_are_rounded_by_blocks_of_a_row(rows: int, blocks: int, scale: float) -> None:
    x = random(rows, blocks * 16)
    packed, scales = nvfp4.quantise_activations(x, torch.tensor(scale))
    assert packed.shape == (rows, blocks * 8)
    assert scales.shape == (rows, blocks)
    for row in range(rows):
        alone = nvfp4.quantise_activations(x[row : row + 1], torch.tensor(scale))
        assert torch.equal(alone[0][0], packed[row])
        for block in range(blocks):
            y = x[row, block * 16 : block * 16 + 16] / scale
            step = (y.abs().max() / 6).to(fp8.DTYPE).float()
            assert float(scales[row, block].float()) == float(step)
            assert torch.equal(nvfp4.decode(nvfp4.unpack(packed[row, block * 8 : block * 8 + 8])), nearest(y / step))


def test_activations_that_are_no_numbers_spoil_their_block_or_saturate() -> None:
    x = random(3, 48)
    x[0, 20], x[1, 0], x[2, 16:32] = torch.nan, torch.inf, 1e-6
    got = activations(x)
    assert got[0].isnan().tolist() == [False] * 16 + [True] * 16 + [False] * 16
    assert float(got[1, 0]) == 6 * 448
    assert got[1].isfinite().all()
    assert got[2, 16:32].abs().max() == 0


def test_wrong_activations_are_named() -> None:
    with pytest.raises(KernelInputError, match="24 input features do not divide"):
        nvfp4.quantise_activations(torch.ones(2, 24), ONE)
    with pytest.raises(KernelInputError, match=r"input_scale has shape \[2\]"):
        nvfp4.quantise_activations(torch.ones(2, 32), torch.ones(2))
