"""RMSNorm in C equals the reference, and a row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.rms_norm import rms_norm
from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.rms_norm import rms_norm as reference
from tests.kernels.close import assert_close

pytestmark = pytest.mark.usefixtures("each_variant")


@settings(deadline=None, max_examples=30)
@given(
    shape=st.lists(st.integers(0, 5), max_size=2),
    size=st.integers(1, 300),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 100),
)
def test_it_equals_the_reference(shape: list[int], size: int, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(*shape, size) * 3, torch.randn(size).to(dtype)
    assert_close(rms_norm(x, weight, 1e-6), reference(x, weight, 1e-6), within=5e-6)


@pytest.mark.usefixtures("two_threads")
def test_a_row_has_the_same_bits_alone_and_on_two_threads() -> None:
    x, weight = torch.randn(40, 2053), torch.randn(2053)
    together = rms_norm(x, weight, 1e-6)
    torch.set_num_threads(1)
    assert torch.equal(torch.cat([rms_norm(row[None], weight, 1e-6) for row in x]), together)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e-40])
def test_odd_values_come_out_as_from_the_reference(value: float) -> None:
    x = torch.zeros(2, 37)
    x[1, 35] = value
    got, expected = rms_norm(x, torch.ones(37), 1e-6), reference(x, torch.ones(37), 1e-6)
    assert torch.equal(got.isnan(), expected.isnan())
    assert_close(got.nan_to_num(), expected.nan_to_num(), within=1e-6)


def test_inputs_that_cannot_be_taken_are_named() -> None:
    with pytest.raises(KernelInputError, match=r"x is torch\.bfloat16"):
        rms_norm(torch.zeros(2, 4).bfloat16(), torch.ones(4), 1e-6)
    with pytest.raises(KernelInputError, match="x is not contiguous"):
        rms_norm(torch.zeros(4, 2).t(), torch.ones(4), 1e-6)
    with pytest.raises(KernelInputError, match="weight has shape"):
        rms_norm(torch.zeros(2, 4), torch.ones(5), 1e-6)
