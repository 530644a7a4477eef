"""FP8 e4m3fn: every code, every rounding boundary, saturation and NaN."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8


def value_of(code: int) -> float:
    """The e4m3fn value of a byte, from the format's definition."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 0xF, code & 0x7
    if exponent == 0xF and mantissa == 0x7:
        return math.nan
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def bits(stored: torch.Tensor) -> list[int]:
    return stored.view(torch.uint8).tolist()


FINITE = [code for code in range(256) if not math.isnan(value_of(code))]
POSITIVE = [code for code in FINITE if code < 0x80]


def test_every_code_decodes_to_the_value_the_format_defines() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(fp8.DTYPE)
    decoded = fp8.decode(codes)
    expected = torch.tensor([value_of(code) for code in range(256)], dtype=torch.float32)
    assert torch.equal(decoded.isnan(), expected.isnan())
    assert torch.equal(decoded.nan_to_num(nan=1e9).view(torch.int32), expected.nan_to_num(nan=1e9).view(torch.int32))


def test_decoding_keeps_the_shape_and_takes_a_strided_view() -> None:
    stored = fp8.encode(torch.linspace(-3, 3, 24).view(2, 3, 4))
    assert fp8.decode(stored).shape == (2, 3, 4)
    assert torch.equal(fp8.decode(stored.transpose(0, 2)), stored.float().transpose(0, 2))


def test_every_finite_code_survives_a_round_trip_bit_for_bit() -> None:
    values = torch.tensor([value_of(code) for code in FINITE])
    assert bits(fp8.encode(values)) == FINITE


def test_halfway_values_round_to_the_even_code() -> None:
    for lower, upper in itertools.pairwise(POSITIVE):
        middle = (value_of(lower) + value_of(upper)) / 2
        even = lower if lower % 2 == 0 else upper
        assert bits(fp8.encode(torch.tensor([middle, -middle]))) == [even, even | 0x80]


def test_values_just_beside_halfway_round_to_the_nearer_code() -> None:
    for lower, upper in itertools.pairwise(POSITIVE):
        middle = torch.tensor((value_of(lower) + value_of(upper)) / 2)
        below, above = torch.nextafter(middle, torch.tensor(0.0)), torch.nextafter(middle, torch.tensor(1e9))
        assert bits(fp8.encode(torch.stack((below, above)))) == [lower, upper]


@pytest.mark.parametrize("value", [448.0, 449.0, 464.0, 480.0, 1e30, math.inf])
def test_values_beyond_the_range_saturate(value: float) -> None:
    assert fp8.decode(fp8.encode(torch.tensor([value, -value]))).tolist() == [448.0, -448.0]


def test_nan_stays_nan() -> None:
    assert fp8.decode(fp8.encode(torch.tensor([math.nan]))).isnan().all()


def test_bfloat16_input_is_rounded_once() -> None:
    values = torch.arange(0x8000, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    assert bits(fp8.encode(values)) == bits(fp8.encode(values.float()))


@settings(deadline=None)
@given(st.floats(-448, 448, width=32))
def test_the_encoded_value_is_a_nearest_one(value: float) -> None:
    chosen = float(fp8.decode(fp8.encode(torch.tensor([value])))[0])
    assert abs(chosen - value) == min(abs(value_of(code) - value) for code in FINITE)


def test_integers_are_refused_by_name() -> None:
    with pytest.raises(KernelInputError, match=r"values is torch\.int32"):
        fp8.encode(torch.ones(2, dtype=torch.int32))
    with pytest.raises(KernelInputError, match=r"stored is torch\.uint8"):
        fp8.decode(torch.ones(2, dtype=torch.uint8))
