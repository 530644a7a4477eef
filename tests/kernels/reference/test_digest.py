"""Page digests: as the formula says, the same however a page was filled, and different after any change of a bit."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.digest import MULTIPLIER, digest_pages, digest_rows

PAGE_SIZE = 5


def pools(dtype: torch.dtype, latent: bool, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Four pages of random bytes."""
    generator = torch.Generator().manual_seed(seed)
    shape = (4, PAGE_SIZE, 6) if latent else (4, PAGE_SIZE, 2, 3)
    size = (*shape[:-1], shape[-1] * dtype.itemsize)

    def make() -> torch.Tensor:
        return torch.randint(0, 256, size, generator=generator, dtype=torch.int32).to(torch.uint8).view(dtype)

    return make(), None if latent else make()


def by_formula(k_pages: torch.Tensor, v_pages: torch.Tensor | None, page: int, fill: int) -> int:
    """Plain integers."""
    rows: list[int] = []
    for slot in range(fill):
        for part in (k_pages, v_pages):
            rows += [] if part is None else part[page, slot].contiguous().view(torch.uint8).flatten().tolist()
    total = sum((byte + 1) * ((i * MULTIPLIER) | 1) for i, byte in enumerate(rows)) % (1 << 32)
    return total - (1 << 32) if total >> 31 else total


KINDS = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])


@KINDS
@pytest.mark.parametrize("latent", [False, True])
def test_the_digest_is_the_formula(dtype: torch.dtype, latent: bool) -> None:
    k_pages, v_pages = pools(dtype, latent)
    got = digest_pages(
        k_pages=k_pages, v_pages=v_pages, pages=torch.tensor([1, 2, 3, 3]), fill=torch.tensor([PAGE_SIZE, 0, 1, 3])
    )
    expected = [by_formula(k_pages, v_pages, page, fill) for page, fill in ((1, PAGE_SIZE), (2, 0), (3, 1), (3, 3))]
    assert got.dtype == torch.int32
    assert got.tolist() == expected


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans(), st.integers(0, 1000))
def test_rows_added_in_any_order_and_grouping_make_the_pages_digest(
    batches: list[int], latent: bool, seed: int
) -> None:
    k_pages, v_pages = pools(torch.bfloat16, latent, seed)
    places = [(page, slot) for page in (1, 2, 3) for slot in range(PAGE_SIZE)]
    random.Random(seed).shuffle(places)
    digests = torch.zeros(4, dtype=torch.int32)
    while places:
        size = batches[len(places) % len(batches)]
        pages, slots = torch.tensor(places[:size]).unbind(1)
        digest_rows(k_pages=k_pages, v_pages=v_pages, pages=pages.int(), slots=slots, digests=digests)
        places = places[size:]
    whole = digest_pages(
        k_pages=k_pages, v_pages=v_pages, pages=torch.arange(4), fill=torch.full((4,), PAGE_SIZE, dtype=torch.int32)
    )
    assert torch.equal(digests, whole)
    assert int(digests[0]) == 0


def test_a_page_has_the_same_digest_wherever_it_lies() -> None:
    k_pages, v_pages = pools(torch.bfloat16, False)
    assert v_pages is not None
    for part in (k_pages, v_pages):
        part[3] = part[1]
    digests = digest_pages(
        k_pages=k_pages, v_pages=v_pages, pages=torch.tensor([1, 3, 2]), fill=torch.tensor([4, 4, 4])
    )
    assert digests[0] == digests[1] != digests[2]


@KINDS
@pytest.mark.parametrize("latent", [False, True])
def test_every_flipped_bit_below_the_fill_mark_is_seen_and_none_above(dtype: torch.dtype, latent: bool) -> None:
    k_pages, v_pages = pools(dtype, latent)
    fill = PAGE_SIZE - 1
    clean = by_formula(k_pages, v_pages, 2, fill)
    for part in (k_pages,) if v_pages is None else (k_pages, v_pages):
        page = part.view(torch.uint8)[2].view(PAGE_SIZE, -1)
        for slot in range(PAGE_SIZE):
            for offset in range(page.shape[1]):
                for bit in range(8):
                    page[slot, offset] ^= 1 << bit
                    seen = digest_pages(
                        k_pages=k_pages, v_pages=v_pages, pages=torch.tensor([2]), fill=torch.tensor([fill])
                    )
                    page[slot, offset] ^= 1 << bit
                    assert (int(seen[0]) != clean) == (slot < fill)


def test_swapped_slots_and_swapped_keys_and_values_are_seen() -> None:
    k_pages, v_pages = pools(torch.bfloat16, False)
    assert v_pages is not None
    clean = by_formula(k_pages, v_pages, 1, PAGE_SIZE)
    assert by_formula(v_pages, k_pages, 1, PAGE_SIZE) != clean
    k_pages[1, [0, 1]], v_pages[1, [0, 1]] = k_pages[1, [1, 0]], v_pages[1, [1, 0]]
    assert by_formula(k_pages, v_pages, 1, PAGE_SIZE) != clean


def test_rows_outside_the_pool_or_the_page_are_ignored() -> None:
    k_pages, v_pages = pools(torch.bfloat16, False)
    pages = torch.tensor([0, -1, 4, 2**31 - 1, 1, 1, 2], dtype=torch.int32)
    slots = torch.tensor([0, 0, 0, 0, -1, PAGE_SIZE, 0], dtype=torch.int32)
    digests = torch.zeros(4, dtype=torch.int32)
    digest_rows(k_pages=k_pages, v_pages=v_pages, pages=pages, slots=slots, digests=digests)
    assert digests.tolist() == [0, 0, by_formula(k_pages, v_pages, 2, 1), 0]
    fill = torch.full_like(pages, 2)
    whole = digest_pages(k_pages=k_pages, v_pages=v_pages, pages=pages[:4], fill=fill[:4])
    assert whole.tolist() == [0, 0, 0, 0]


def test_wrong_inputs_are_named_and_nothing_is_fine() -> None:
    k_pages, v_pages = pools(torch.bfloat16, False)
    none = torch.zeros(0, dtype=torch.int64)
    digests = torch.zeros(4, dtype=torch.int32)
    digest_rows(k_pages=k_pages, v_pages=v_pages, pages=none, slots=none, digests=digests)
    assert digests.tolist() == [0, 0, 0, 0]
    assert digest_pages(k_pages=k_pages, v_pages=v_pages, pages=none, fill=none).shape == (0,)
    with pytest.raises(KernelInputError, match=r"digests is torch\.int64"):
        digest_rows(k_pages=k_pages, v_pages=v_pages, pages=none, slots=none, digests=digests.long())
