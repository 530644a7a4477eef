"""Rotary embedding in C: angles within rounding of the reference, and rotations with its very bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.rotary import angles, rotate
from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference import rotary as reference
from tests.kernels.close import assert_close

pytestmark = pytest.mark.usefixtures("each_variant")


@settings(deadline=None, max_examples=20)
@given(
    positions=st.lists(st.integers(0, 2**20), max_size=9),
    count=st.integers(0, 40),
    theta=st.sampled_from([1e4, 1e6]),
    amplitude=st.sampled_from([1.0, 1.37]),
)
def test_angles_equal_the_reference(positions: list[int], count: int, theta: float, amplitude: float) -> None:
    frequencies = reference.inverse_frequencies(2 * count, theta, torch.device("cpu"))
    places = torch.tensor(positions, dtype=torch.int64)
    got, expected = angles(places, frequencies, amplitude), reference.angles(places, frequencies, amplitude)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other, within=3e-7)


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(0, 5),
    heads=st.integers(0, 3),
    count=st.integers(0, 40),
    rest=st.integers(0, 9),
    interleaved=st.booleans(),
)
def test_rotations_have_the_bits_of_the_reference(
    tokens: int, heads: int, count: int, rest: int, interleaved: bool
) -> None:
    torch.manual_seed(0)
    x, cosine, sine = (
        torch.randn(tokens, heads, 2 * count + rest),
        torch.randn(tokens, count),
        torch.randn(tokens, count),
    )
    expected = reference.rotate(x, cosine, sine, interleaved=interleaved)
    assert torch.equal(rotate(x, cosine, sine, interleaved=interleaved), expected)


@pytest.mark.usefixtures("two_threads")
def test_two_threads_change_no_bit() -> None:
    x, positions = torch.randn(300, 8, 64), torch.arange(300)
    frequencies = reference.inverse_frequencies(64, 1e4, torch.device("cpu"))
    by_two = rotate(x, *angles(positions, frequencies))
    torch.set_num_threads(1)
    assert torch.equal(rotate(x, *angles(positions, frequencies)), by_two)


def test_nan_and_infinity_stay_in_their_pair() -> None:
    x = torch.randn(1, 2, 16)
    x[0, 1, 3], x[0, 0, 0] = float("nan"), float("inf")
    cosine, sine = reference.angles(torch.tensor([5]), torch.rand(8))
    got, expected = rotate(x, cosine, sine), reference.rotate(x, cosine, sine)
    assert torch.equal(got.nan_to_num(), expected.nan_to_num())
    assert int((~got.isfinite()).sum()) == 4


def test_inputs_that_cannot_be_taken_are_named() -> None:
    x, cosine = torch.zeros(2, 3, 8), torch.zeros(2, 4)
    with pytest.raises(KernelInputError, match="cosine is for 8 elements of a head, x has 7"):
        rotate(x[..., :7].contiguous(), cosine, cosine)
    with pytest.raises(KernelInputError, match="x is not contiguous"):
        rotate(x.transpose(0, 1).contiguous().transpose(0, 1), cosine, cosine)
    with pytest.raises(KernelInputError, match=r"sine is torch\.float64"):
        rotate(x, cosine, cosine.double())
    with pytest.raises(KernelInputError, match=r"positions is torch\.int32"):
        angles(torch.zeros(2, dtype=torch.int32), torch.ones(4))
