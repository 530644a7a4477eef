"""RMSNorm against its definition in float64, and batch by batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.rms_norm import rms_norm
from tests.kernels.close import assert_close


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
