"""Page digests in Triton are the numbers of the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference import digest as reference
from octavo_kernels.triton.digest import digest_pages, digest_rows
from tests.kernels.reference.test_digest import PAGE_SIZE, pools

DTYPES = st.sampled_from([torch.bfloat16, torch.float8_e4m3fn])
PAGES = st.integers(-2, 5)
SLOTS = st.integers(-1, PAGE_SIZE + 1)


@settings(deadline=None, max_examples=12)
@given(places=st.lists(st.tuples(PAGES, SLOTS), max_size=6), dtype=DTYPES, latent=st.booleans(), wide=st.booleans())
def test_rows_add_what_they_add_in_the_reference(
    places: list[tuple[int, int]], dtype: torch.dtype, latent: bool, wide: bool
) -> None:
    k_pages, v_pages = pools(dtype, latent)
    index = torch.tensor(places, dtype=torch.int64 if wide else torch.int32).view(-1, 2)
    pages, slots = index.t().contiguous()
    got, expected = torch.arange(4, dtype=torch.int32), torch.arange(4, dtype=torch.int32)
    digest_rows(k_pages=k_pages, v_pages=v_pages, pages=pages, slots=slots, digests=got)
    reference.digest_rows(k_pages=k_pages, v_pages=v_pages, pages=pages, slots=slots, digests=expected)
    assert got.tolist() == expected.tolist()


@settings(deadline=None, max_examples=10)
@given(places=st.lists(st.tuples(PAGES, SLOTS), max_size=4), dtype=DTYPES, latent=st.booleans())
def test_pages_have_the_digest_of_the_reference(
    places: list[tuple[int, int]], dtype: torch.dtype, latent: bool
) -> None:
    k_pages, v_pages = pools(dtype, latent)
    pages, fill = torch.tensor(places, dtype=torch.int32).view(-1, 2).t().contiguous()
    got = digest_pages(k_pages=k_pages, v_pages=v_pages, pages=pages, fill=fill)
    expected = reference.digest_pages(k_pages=k_pages, v_pages=v_pages, pages=pages, fill=fill)
    assert got.dtype == torch.int32
    assert got.tolist() == expected.tolist()


def test_rows_longer_than_are_added_up_at_once_count_to_their_end() -> None:
    k_pages = torch.arange(2 * 3 * 1500, dtype=torch.int32).to(torch.uint8).view(2, 3, 1500)
    places = {"pages": torch.tensor([1]), "fill": torch.tensor([3])}
    got = digest_pages(k_pages=k_pages, v_pages=None, **places)
    assert got.tolist() == reference.digest_pages(k_pages=k_pages, v_pages=None, **places).tolist()


def test_pages_that_are_not_contiguous_are_refused() -> None:
    k_pages, _ = pools(torch.bfloat16, latent=True)
    with pytest.raises(KernelInputError, match="k_pages is not contiguous"):
        digest_pages(k_pages=k_pages.transpose(0, 1), v_pages=None, pages=torch.ones(1).int(), fill=torch.ones(1).int())
