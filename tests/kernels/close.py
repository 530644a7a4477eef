"""Comparing tensors. torch.testing.assert_close would do, but its first call imports four seconds of torch."""

from __future__ import annotations

import torch


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *, within: float) -> None:
    """Same shape, and no element further than `within` from the expected one; NaN is close to nothing."""
    assert actual.shape == expected.shape
    if actual.numel():
        furthest = float((actual.double() - expected.double()).abs().max())
        assert furthest <= within, f"an element is off by {furthest:.3g}, allowed {within:.3g}"
