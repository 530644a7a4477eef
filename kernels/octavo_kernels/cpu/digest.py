"""Page digests in C: the words of `reference.digest`, bit for bit."""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape


def digest_rows(
    *,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    pages: torch.Tensor,
    slots: torch.Tensor,
    digests: torch.Tensor,
) -> None:
    """See `reference.digest.digest_rows`; k_pages, v_pages and digests contiguous."""
    require_dtype("digests", digests, torch.int32)
    require_shape("digests", digests, k_pages.shape[0])
    require_contiguous(digests=digests)
    _call("digest_rows", k_pages, v_pages, pages, ("slots", slots), digests)


def digest_pages(
    *, k_pages: torch.Tensor, v_pages: torch.Tensor | None, pages: torch.Tensor, fill: torch.Tensor
) -> torch.Tensor:
    """See `reference.digest.digest_pages`; k_pages and v_pages contiguous."""
    digests = torch.zeros(pages.shape, dtype=torch.int32)
    _call("digest_pages", k_pages, v_pages, pages, ("fill", fill), digests)
    return digests


def _call(
    function: str,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    pages: torch.Tensor,
    numbers: tuple[str, torch.Tensor],
    digests: torch.Tensor,
) -> None:
    require_contiguous(k_pages=k_pages)
    if v_pages is not None:
        require_contiguous(v_pages=v_pages)
        require_shape("v_pages", v_pages, *k_pages.shape[:2], *(None for _ in v_pages.shape[2:]))
    if k_pages.ndim < 2 or not k_pages.shape[1]:
        raise KernelInputError(f"k_pages has shape {list(k_pages.shape)}, needed [num_pages, page_size, ...]")
    name, entries = numbers
    require_dtype("pages", pages, torch.int32, torch.int64)
    require_dtype(name, entries, torch.int32, torch.int64)
    require_shape("pages", pages, None)
    require_shape(name, entries, *pages.shape)
    if pages.numel() and k_pages.numel():
        library.load().call(
            function,
            *(k_pages, v_pages, pages.long().contiguous(), entries.long().contiguous(), digests, pages.numel()),
            *(*k_pages.shape[:2], _slot_bytes(k_pages), 0 if v_pages is None else _slot_bytes(v_pages)),
        )


def _slot_bytes(pages: torch.Tensor) -> int:
    return pages.nbytes // (pages.shape[0] * pages.shape[1])
