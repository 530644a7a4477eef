# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""A kernel that touches memory of nobody's is an error in the interpreter, not a crash and not silence."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(source, target, offset, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(target + i, tl.load(source + offset + i, mask=i < n - 1, other=0))


@triton.jit
def count_kernel(target, offset):
    tl.atomic_add(target + offset, 1)


def test_a_load_past_the_end_of_a_tensor_is_an_error() -> None:
    source, target = torch.arange(8.0), torch.empty(8)
    copy_kernel[(1,)](source, target, 1, n=8)
    with pytest.raises(Exception, match="load of 1 elements outside every tensor"):
        copy_kernel[(1,)](source, target, 2, n=8)


def test_a_load_in_front_of_a_tensor_is_an_error() -> None:
    with pytest.raises(Exception, match="outside every tensor"):
        copy_kernel[(1,)](torch.arange(8.0), torch.empty(8), -1, n=8)


def test_a_store_past_the_end_of_a_tensor_is_an_error() -> None:
    with pytest.raises(Exception, match="store of 4 elements outside every tensor"):
        copy_kernel[(1,)](torch.arange(8.0), torch.empty(4), 0, n=8)


def test_an_atomic_past_the_end_of_a_tensor_is_an_error() -> None:
    counters = torch.zeros(2, dtype=torch.int32)
    count_kernel[(1,)](counters, 1)
    assert counters.tolist() == [0, 1]
    with pytest.raises(Exception, match="atomic of 1 elements outside every tensor"):
        count_kernel[(1,)](counters, 2**40)
