"""RMSNorm and rotary embedding against their definitions in float64, and batch by batch."""

from __future__ import annotations

import cmath

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.rms_norm import rms_norm
from octavo_kernels.reference.rotary import angles, inverse_frequencies, rotate
from tests.kernels.close import assert_close

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 5), st.integers(1, 300), st.sampled_from([1e-6, 1e-3, 1.0]))
def test_rms_norm_equals_its_definition(rows: int, width: int, scale: float) -> None:
    x, weight = random(rows, width) * scale, random(width, seed=1).bfloat16()
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert_close(
        rms_norm(x, weight, 1e-6), expected, within=1e-5 * max(1.0, float(expected.abs().amax())) if rows else 0
    )


def test_rms_norm_of_a_row_has_the_same_bits_in_every_batch() -> None:
    x, weight = random(70, 2048), random(2048, seed=1).bfloat16()
    together = rms_norm(x, weight, 1e-6)
    assert all(torch.equal(rms_norm(x[i : i + 1], weight, 1e-6), together[i : i + 1]) for i in range(70))


def test_rms_norm_names_a_weight_of_another_width() -> None:
    with pytest.raises(KernelInputError, match=r"weight has shape \[3\], needed \[4\]"):
        rms_norm(random(2, 4), torch.ones(3), 1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 40_000), st.sampled_from([2, 8, 10, 128]), st.sampled_from([1e4, 1e6]))
def test_rotation_multiplies_each_pair_by_a_unit_complex_number(position: int, dim: int, theta: float) -> None:
    x = random(1, 3, dim)
    rotated = rotate(x, *angles(torch.tensor([position]), inverse_frequencies(dim, theta, CPU)))
    for head in range(3):
        for pair in range(dim // 2):
            number = complex(float(x[0, head, pair]), float(x[0, head, pair + dim // 2]))
            turned = number * cmath.exp(1j * position * theta ** (-2 * pair / dim))
            got = complex(float(rotated[0, head, pair]), float(rotated[0, head, pair + dim // 2]))
            # A float32 phase of size `position` is off by up to half its spacing.
            assert abs(got - turned) < 1e-5 + 4 * abs(number) * position * 2**-24


def test_position_zero_is_not_rotated_and_position_one_is() -> None:
    x = random(2, 1, 8)
    rotated = rotate(x, *angles(torch.tensor([0, 1]), inverse_frequencies(8, 1e4, CPU)))
    assert torch.equal(rotated[0], x[0])
    assert not torch.equal(rotated[1], x[1])


def test_angles_of_a_position_have_the_same_bits_in_every_batch() -> None:
    positions, frequencies = torch.arange(0, 3000, 37), inverse_frequencies(32, 1e6, CPU)
    together = torch.cat(angles(positions, frequencies), dim=1)
    for place, position in enumerate(positions.tolist()):
        alone = torch.cat(angles(torch.tensor([position]), frequencies), dim=1)
        assert torch.equal(alone[0], together[place])


def test_an_odd_head_dimension_is_refused() -> None:
    with pytest.raises(KernelInputError, match="head_dim is 7"):
        inverse_frequencies(7, 1e4, CPU)
