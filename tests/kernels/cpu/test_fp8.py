"""Bulk FP8 conversion in C: every code and every rounding as `formats.fp8` has them."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels.cpu.fp8 import decode, encode
from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8

pytestmark = pytest.mark.usefixtures("each_variant")

CODES = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(fp8.DTYPE)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 256])
@pytest.mark.parametrize("start", [0, 1, 120])
def test_every_code_is_decoded_exactly(count: int, start: int) -> None:
    stored = CODES.view(torch.uint8)[start : start + count].view(fp8.DTYPE)
    got, expected = decode(stored), stored.float()
    assert torch.equal(got.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(got[numbers].view(torch.int32), expected[numbers].view(torch.int32))


@pytest.mark.usefixtures("two_threads")
def test_results_that_bypass_the_caches_are_the_same() -> None:
    stored = CODES.view(torch.uint8)[:126].repeat(20_001)[: (1 << 21) + 5].view(fp8.DTYPE)
    assert torch.equal(decode(stored), stored.float())


def test_every_rounding_is_the_formats() -> None:
    numbers = CODES.float()
    numbers = numbers[numbers.isfinite()].sort().values
    between = (numbers[1:] + numbers[:-1]) / 2
    odd = torch.tensor([float("nan"), float("inf"), 463.9, 464.0, 464.1, 480.0, 1e38, 2**-10, 2**-10 * 1.001, 1e-45])
    values = torch.cat([numbers, between, between.nextafter(numbers[1:]), between.nextafter(numbers[:-1]), odd])
    values = torch.cat([values, -values])
    assert torch.equal(encode(values).view(torch.uint8), fp8.encode(values).view(torch.uint8))


def test_random_bit_patterns_are_rounded_as_the_format_does() -> None:
    words = torch.randint(-(2**31), 2**31 - 1, (100_003,), generator=torch.Generator().manual_seed(0)).int()
    values = words.view(torch.float32)
    assert torch.equal(encode(values).view(torch.uint8), fp8.encode(values).view(torch.uint8))


def test_inputs_that_cannot_be_taken_are_named() -> None:
    with pytest.raises(KernelInputError, match=r"stored is torch\.uint8"):
        decode(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(KernelInputError, match="stored is not contiguous"):
        decode(CODES.view(16, 16).t())
    with pytest.raises(KernelInputError, match=r"values is torch\.bfloat16"):
        encode(torch.zeros(3, dtype=torch.bfloat16))


def test_memory_of_another_device_is_no_address() -> None:
    with pytest.raises(KernelInputError, match=r"a tensor of shape \[3\] is on meta, needed the CPU"):
        decode(torch.zeros(3, dtype=torch.float8_e4m3fn, device="meta"))
