"""Page digests in C are the words of the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.digest import digest_pages, digest_rows
from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference import digest as reference

pytestmark = pytest.mark.usefixtures("each_variant")


def pools(dtype: torch.dtype, latent: bool, page_size: int, dim: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Four pages of random bytes."""
    shape = (4, page_size, dim) if latent else (4, page_size, 2, dim)
    size = (*shape[:-1], shape[-1] * dtype.itemsize)
    parts = [torch.randint(0, 256, size).to(torch.uint8).view(dtype) for _ in range(2)]
    return parts[0], None if latent else parts[1]


@settings(deadline=None, max_examples=25)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float8_e4m3fn]),
    latent=st.booleans(),
    page_size=st.sampled_from([1, 3, 16]),
    dim=st.sampled_from([1, 5, 64, 576]),
    ids=st.lists(st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 4, 2**31 - 1]), max_size=9),
    index_dtype=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 1000),
)
def test_rows_and_pages_have_the_words_of_the_reference(
    dtype: torch.dtype, latent: bool, page_size: int, dim: int, ids: list[int], index_dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    k_pages, v_pages = pools(dtype, latent, page_size, dim)
    pages = torch.tensor(ids, dtype=index_dtype)
    slots = torch.randint(-1, page_size + 1, pages.shape).to(index_dtype)
    got = torch.randint(-(2**31), 2**31 - 1, (4,)).int()
    expected = got.clone()
    digest_rows(k_pages=k_pages, v_pages=v_pages, pages=pages, slots=slots, digests=got)
    reference.digest_rows(k_pages=k_pages, v_pages=v_pages, pages=pages, slots=slots, digests=expected)
    assert torch.equal(got, expected)
    whole = digest_pages(k_pages=k_pages, v_pages=v_pages, pages=pages, fill=slots)
    assert torch.equal(whole, reference.digest_pages(k_pages=k_pages, v_pages=v_pages, pages=pages, fill=slots))


@pytest.mark.usefixtures("two_threads")
def test_two_threads_add_to_one_page() -> None:
    k_pages = torch.randint(0, 256, (2, 64, 8192)).to(torch.uint8)
    pages, slots, got = torch.ones(64, dtype=torch.int64), torch.arange(64), torch.zeros(2, dtype=torch.int32)
    digest_rows(k_pages=k_pages, v_pages=None, pages=pages, slots=slots, digests=got)
    whole = digest_pages(k_pages=k_pages, v_pages=None, pages=torch.tensor([1, 1]), fill=torch.tensor([64, 64]))
    assert got[1] == whole[0] == whole[1] != 0


def test_inputs_that_cannot_be_taken_are_named() -> None:
    k_pages, v_pages = pools(torch.bfloat16, False, 3, 4)
    one, digests = torch.ones(1, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
    with pytest.raises(KernelInputError, match="k_pages is not contiguous"):
        digest_rows(k_pages=k_pages[..., ::2], v_pages=v_pages, pages=one, slots=one, digests=digests)
    with pytest.raises(KernelInputError, match=r"digests is torch\.int64"):
        digest_rows(k_pages=k_pages, v_pages=v_pages, pages=one, slots=one, digests=digests.long())
    with pytest.raises(KernelInputError, match=r"slots is torch\.float32"):
        digest_rows(k_pages=k_pages, v_pages=v_pages, pages=one, slots=one.float(), digests=digests)
    with pytest.raises(KernelInputError, match="v_pages has shape"):
        digest_pages(k_pages=k_pages, v_pages=k_pages[:2], pages=one, fill=one)
