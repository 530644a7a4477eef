# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Page digests on CUDA: one program per slot adds the terms of its bytes; sums of int32 wrap and know no order.

The numbers are those of `reference/digest.py`, where the formula is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.reference.digest import MULTIPLIER
from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors

_MULTIPLIER = tl.constexpr(MULTIPLIER - (1 << 32))
BYTES_AT_ONCE = 1024
"""Bytes of a row that a program adds up in one go."""


@triton.jit
def sum_of_bytes(row, first_index, BYTES: tl.constexpr, BLOCK: tl.constexpr):
    """Terms of BYTES bytes from pointer `row` on, the first of which is byte `first_index` of its page."""
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(0, BYTES, BLOCK):
        offset = start + tl.arange(0, BLOCK)
        stored = tl.load(row + offset, mask=offset < BYTES, other=0).to(tl.int32)
        weight = ((first_index + offset) * _MULTIPLIER) | 1
        total += tl.where(offset < BYTES, (stored + 1) * weight, 0)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=("num_pages",))
def digest_slot(
    k_pages,
    v_pages,
    pages,
    slots,
    digests,
    num_pages,
    PAGE: tl.constexpr,
    K_BYTES: tl.constexpr,
    V_BYTES: tl.constexpr,
    WHOLE_PAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the terms of one slot: grid (n), of page pages[j] and slot slots[j], to digests[page];

    with WHOLE_PAGES grid (n, PAGE), of every slot below slots[j], to digests[j].
    """
    entry = tl.program_id(0)
    page = tl.load(pages + entry).to(tl.int64)
    slot = tl.load(slots + entry).to(tl.int64)
    inside = (page > 0) & (page < num_pages)
    target = page
    if WHOLE_PAGES:
        fill = slot
        slot = tl.program_id(1).to(tl.int64)
        inside = inside & (slot < fill)
        target = entry
    else:
        inside = inside & (slot >= 0) & (slot < PAGE)
    if inside:
        index = (slot * (K_BYTES + V_BYTES)).to(tl.int32)
        total = sum_of_bytes(k_pages + (page * PAGE + slot) * K_BYTES, index, K_BYTES, BLOCK)
        if V_BYTES > 0:
            total += sum_of_bytes(v_pages + (page * PAGE + slot) * V_BYTES, index + K_BYTES, V_BYTES, BLOCK)
        tl.atomic_add(digests + target, total, sem="relaxed")


@on_device_of_tensors
def digest_rows(
    *,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    pages: torch.Tensor,
    slots: torch.Tensor,
    digests: torch.Tensor,
) -> None:
    """As `reference.digest.digest_rows`; raises KernelInputError for dtypes, shapes and layout."""
    require_dtype("digests", digests, torch.int32)
    require_shape("digests", digests, k_pages.shape[0])
    require_contiguous(digests=digests)
    _launch(k_pages, v_pages, pages, slots, digests, name="slots", whole_pages=False)


@on_device_of_tensors
def digest_pages(
    *, k_pages: torch.Tensor, v_pages: torch.Tensor | None, pages: torch.Tensor, fill: torch.Tensor
) -> torch.Tensor:
    """As `reference.digest.digest_pages`; raises KernelInputError for dtypes, shapes and layout."""
    digests = torch.zeros(pages.shape, dtype=torch.int32, device=k_pages.device)
    _launch(k_pages, v_pages, pages, fill, digests, name="fill", whole_pages=True)
    return digests


def _launch(
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    pages: torch.Tensor,
    slots: torch.Tensor,
    digests: torch.Tensor,
    *,
    name: str,
    whole_pages: bool,
) -> None:
    require_shape("pages", pages, None)
    require_shape(name, slots, *pages.shape)
    for which, places in (("pages", pages), (name, slots)):
        require_dtype(which, places, torch.int32, torch.int64)
    require_contiguous(k_pages=k_pages, pages=pages, **{name: slots})
    if v_pages is not None:
        require_contiguous(v_pages=v_pages)
        if v_pages.shape[:2] != k_pages.shape[:2]:
            raise KernelInputError(f"v_pages has shape {list(v_pages.shape)}, k_pages {list(k_pages.shape)}")
    if pages.shape[0] == 0:
        return
    num_pages, page_size = k_pages.shape[:2]
    digest_slot[(pages.shape[0], page_size if whole_pages else 1)](
        k_pages.view(torch.uint8),
        None if v_pages is None else v_pages.view(torch.uint8),
        pages,
        slots,
        digests,
        num_pages,
        PAGE=page_size,
        K_BYTES=_row_bytes(k_pages),
        V_BYTES=0 if v_pages is None else _row_bytes(v_pages),
        WHOLE_PAGES=whole_pages,
        BLOCK=BYTES_AT_ONCE,
    )


def _row_bytes(pages: torch.Tensor) -> int:
    return pages[0, 0].numel() * pages.element_size()


_SIGNATURE = {"k_pages": "*u8", "pages": "*i32", "slots": "*i32", "digests": "*i32", "num_pages": "i32"}
_SIZES = {"PAGE": 64, "BLOCK": BYTES_AT_ONCE}

AOT_CASES: tuple[AotCase, ...] = (
    AotCase(
        "digest_rows/fp8",
        digest_slot,
        _SIGNATURE | {"v_pages": "*u8"},
        _SIZES | {"K_BYTES": 1024, "V_BYTES": 1024, "WHOLE_PAGES": False},
        max_registers=64,
    ),
    AotCase(
        "digest_pages/mla/bf16",
        digest_slot,
        _SIGNATURE,
        _SIZES | {"v_pages": None, "K_BYTES": 1152, "V_BYTES": 0, "WHOLE_PAGES": True},
        max_registers=64,
    ),
)
