"""The place of a page: its logical index within its request and its fill mark, in one int32 of the page record.

    bits 8..30   logical index, below 2**23: so a place is never negative
    bits 0..7    fill mark, the tokens of the page that every layer holds: 0 to 128

The logical index is constant in one life of a page, so of two places of that life the greater one has more fill, and
a maximum (atomic on a GPU) raises the mark. All functions take ints and int32 tensors alike.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from octavo_kernels.errors import KernelInputError

Words = TypeVar("Words", int, torch.Tensor)

FILL_BITS = 8
FILL_MASK = (1 << FILL_BITS) - 1
LARGEST_PAGE = 128
"""Tokens of the largest page whose fill mark is kept."""


def place_of(logical: Words, fill: Words) -> Words:
    """The place of page `logical` with `fill` tokens in it."""
    return (logical << FILL_BITS) | fill


def logical_of(place: Words) -> Words:
    """The index of the page within its request."""
    return place >> FILL_BITS


def fill_of(place: Words) -> Words:
    """The tokens of the page that every layer holds."""
    return place & FILL_MASK


def filled_to(place: Words, fill: Words) -> Words:
    """The same page with `fill` tokens in it."""
    return (place & ~FILL_MASK) | fill


def require_page_size(page_size: int) -> None:
    """Raise KernelInputError unless a fill mark can say that a page of `page_size` tokens is full."""
    if not 1 <= page_size <= LARGEST_PAGE:
        raise KernelInputError(f"page_size is {page_size}, needed 1 to {LARGEST_PAGE}: a fill mark counts that far")
