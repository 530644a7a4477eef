"""Rotary embedding turns each pair as a complex number, in either pairing; YaRN stretches slow pairs only."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.rotary import (
    angles,
    inverse_frequencies,
    rotate,
    yarn_amplitude,
    yarn_frequencies,
    yarn_mscale,
)
from tests.kernels.close import assert_close

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=40)
@given(
    position=st.integers(0, 40_000),
    rotated=st.sampled_from([2, 8, 10, 64]),
    passed=st.sampled_from([0, 1, 6]),
    theta=st.sampled_from([1e4, 1e6]),
    interleaved=st.booleans(),
)
def test_rotation_multiplies_each_pair_by_a_unit_complex_number_and_passes_the_rest(
    position: int, rotated: int, passed: int, theta: float, interleaved: bool
) -> None:
    x = random(1, 3, rotated + passed)
    cosine, sine = angles(torch.tensor([position]), inverse_frequencies(rotated, theta, CPU))
    got = rotate(x, cosine, sine, interleaved=interleaved)
    assert got.shape == x.shape
    assert torch.equal(got[..., rotated:], x[..., rotated:])
    for head in range(3):
        for pair in range(rotated // 2):
            first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotated // 2)
            number = complex(float(x[0, head, first]), float(x[0, head, second]))
            turned = number * cmath.exp(1j * position * theta ** (-2 * pair / rotated))
            # A float32 phase of size `position` is off by up to half its spacing.
            distance = abs(complex(float(got[0, head, first]), float(got[0, head, second])) - turned)
            assert distance < 1e-5 + 4 * abs(number) * position * 2**-24


def test_both_pairings_are_the_same_rotation_of_reordered_elements() -> None:
    x, (cosine, sine) = random(5, 2, 12), angles(torch.arange(5), inverse_frequencies(8, 1e4, CPU))
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7, 8, 9, 10, 11])
    assert torch.equal(rotate(x, cosine, sine, interleaved=True)[..., order], rotate(x[..., order], cosine, sine))


def test_position_zero_is_not_rotated_and_position_one_is() -> None:
    x = random(2, 1, 8)
    rotated = rotate(x, *angles(torch.tensor([0, 1]), inverse_frequencies(8, 1e4, CPU)))
    assert torch.equal(rotated[0], x[0])
    assert not torch.equal(rotated[1], x[1])


def test_the_amplitude_lengthens_what_is_rotated() -> None:
    x, frequencies = random(3, 2, 8), inverse_frequencies(8, 1e4, CPU)
    longer = rotate(x, *angles(torch.arange(3), frequencies, 1.5))
    assert_close(longer, rotate(x, *angles(torch.arange(3), frequencies)) * 1.5, within=1e-6)


@pytest.mark.parametrize("rotated", [32, 10])
def test_angles_of_a_position_have_the_same_bits_in_every_batch(rotated: int) -> None:
    positions, frequencies = torch.arange(0, 3000, 37), inverse_frequencies(rotated, 1e6, CPU)
    together = torch.cat(angles(positions, frequencies), dim=1)
    for place, position in enumerate(positions.tolist()):
        alone = torch.cat(angles(torch.tensor([position]), frequencies), dim=1)
        assert torch.equal(alone[0], together[place])


def test_nothing_to_rotate_is_fine() -> None:
    cosine, sine = angles(torch.zeros(0, dtype=torch.int64), inverse_frequencies(8, 1e4, CPU))
    assert rotate(torch.zeros(0, 2, 8), cosine, sine).shape == (0, 2, 8)


def test_yarn_keeps_fast_pairs_slows_slow_ones_and_mixes_between() -> None:
    plain = inverse_frequencies(64, 1e4, CPU)
    yarn = yarn_frequencies(64, 1e4, CPU, factor=40.0, original_context=4096)
    turns = 4096 * plain / (2 * math.pi)
    ratio = plain / yarn
    assert_close(ratio[turns > 45], torch.ones(int((turns > 45).sum())), within=1e-6)
    assert_close(ratio[turns < 0.7], torch.full((int((turns < 0.7).sum()),), 40.0), within=1e-3)
    assert (ratio.diff() >= -1e-4).all()
    assert ((ratio > 1.01) & (ratio < 39)).any()


def test_yarn_without_stretching_changes_nothing() -> None:
    yarn = yarn_frequencies(64, 1e4, CPU, factor=1.0, original_context=4096)
    assert_close(yarn, inverse_frequencies(64, 1e4, CPU), within=1e-7)
    assert yarn_amplitude(1.0) == yarn_mscale(0.5, 2.0) == 1.0


def test_yarn_amplitude_is_the_quotient_where_a_model_gives_both() -> None:
    assert yarn_amplitude(40.0, 1.0, 1.0) == 1.0
    assert yarn_amplitude(40.0) == pytest.approx(0.1 * math.log(40) + 1)
    assert yarn_amplitude(40.0, 0.7, 1.4) == pytest.approx((0.07 * math.log(40) + 1) / (0.14 * math.log(40) + 1))


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(KernelInputError, match="head_dim is 7"):
        inverse_frequencies(7, 1e4, CPU)
    cosine, sine = angles(torch.arange(2), inverse_frequencies(8, 1e4, CPU))
    with pytest.raises(KernelInputError, match="cosine is for 8 elements of a head, x has 6"):
        rotate(random(2, 1, 6), cosine, sine)
    with pytest.raises(KernelInputError, match=r"cosine has shape \[2, 4\], needed \[3, any\]"):
        rotate(random(3, 1, 8), cosine, sine)
    with pytest.raises(KernelInputError, match=r"positions is torch\.int32"):
        angles(torch.arange(2, dtype=torch.int32), inverse_frequencies(8, 1e4, CPU))
