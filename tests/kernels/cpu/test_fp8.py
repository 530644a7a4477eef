"""FP8 to float in C."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels.cpu.fp8 import decode
from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8
from tests.kernels.cpu.variants import VARIANTS, kernels_of


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("count", [0, 1, 15, 256, 259])
def test_every_code_is_exact(variant: str, count: int) -> None:
    codes = (torch.arange(count) % 256).to(torch.uint8).view(fp8.DTYPE)
    with kernels_of(variant):
        result = decode(codes)
    assert torch.equal(result.nan_to_num(1e9), fp8.decode(codes).nan_to_num(1e9))


def test_refuses_what_it_cannot_take() -> None:
    with pytest.raises(KernelInputError, match=r"stored is torch\.uint8"):
        decode(torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(KernelInputError, match="stored is not contiguous"):
        decode(torch.zeros(4, 4).to(fp8.DTYPE).t())
