# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Integrity on CUDA: one program per row looks at every pair of the row, before the first layer and after the last.

The words are those of `reference/integrity.py`, bit for bit; the order of a step's checks is explained there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.errors import require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.place import FILL_BITS, FILL_MASK, require_page_size
from octavo_kernels.formats.verdict import UNCONCLUDED, Finding
from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors
from octavo_kernels.triton.attend_pages import page_or_null
from octavo_kernels.triton.binding import mix

_RANGE = tl.constexpr(int(Finding.RANGE))
_TAG = tl.constexpr(int(Finding.TAG))
_LOGICAL = tl.constexpr(int(Finding.LOGICAL))
_FILL = tl.constexpr(int(Finding.FILL))
_BINDING = tl.constexpr(int(Finding.BINDING))
_UNCONCLUDED = tl.constexpr(UNCONCLUDED)
_FILL_BITS = tl.constexpr(FILL_BITS)
_FILL_MASK = tl.constexpr(FILL_MASK)

PAIRS_AT_ONCE = 256
"""Entries of a row that a program looks at in one go."""


@triton.jit
def needed_fill(tokens, entry, PAGE: tl.constexpr):
    """Tokens that page `entry` of a row with `tokens` of them holds."""
    return tl.minimum(tl.maximum(tokens.to(tl.int64) - entry.to(tl.int64) * PAGE, 0), PAGE)


@triton.jit
def any_of(bits, BIT: tl.constexpr):
    """BIT if one of the words has it, else 0."""
    return tl.max(bits & BIT, 0)


@triton.jit(do_not_specialize=("table_width", "num_pages"))
def check_row(
    block_table,
    query_start,
    context_lens,
    nonces,
    bindings,
    page_tags,
    page_places,
    verdict,
    table_width,
    num_pages,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (R). See `reference.integrity.check_rows`."""
    row = tl.program_id(0)
    context = tl.load(context_lens + row)
    before = context - (tl.load(query_start + row + 1) - tl.load(query_start + row))
    nonce = tl.load(nonces + row)
    table_row = block_table + row.to(tl.int64) * table_width * 2
    bits = tl.zeros([BLOCK], tl.int32)
    terms = tl.zeros([BLOCK], tl.int64)
    for first in range(0, table_width, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        there = entry < table_width
        page = tl.load(table_row + entry * 2, mask=there, other=0)
        tag = tl.load(table_row + entry * 2 + 1, mask=there, other=0)
        held = (page != 0) | (tag != 0)
        outside = (page <= 0) | (page >= num_pages)
        needed = there & (needed_fill(context, entry, PAGE) > 0)
        known = page_or_null(page, num_pages)
        place = tl.load(page_places + known, mask=there, other=0)
        bits |= tl.where((held | needed) & outside, _RANGE, 0)
        bits |= tl.where(held & (tl.load(page_tags + known, mask=there, other=0) != tag), _TAG, 0)
        bits |= tl.where(held & ((place >> _FILL_BITS) != entry), _LOGICAL, 0)
        bits |= tl.where(there & ((place & _FILL_MASK) < needed_fill(before, entry, PAGE)), _FILL, 0)
        terms += tl.where(held, mix(nonce, entry, page, tag), 0)
    found = tl.where(context > table_width.to(tl.int64) * PAGE, _RANGE, 0)
    found |= any_of(bits, _RANGE) | any_of(bits, _TAG) | any_of(bits, _LOGICAL) | any_of(bits, _FILL)
    found |= tl.where(tl.sum(terms, 0) != tl.load(bindings + row), _BINDING, 0)
    tl.store(verdict + row, found | _UNCONCLUDED)


@triton.jit(do_not_specialize=("table_width", "num_pages", "step"))
def conclude_row(
    block_table,
    context_lens,
    page_places,
    verdict,
    table_width,
    num_pages,
    step,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (R). See `reference.integrity.conclude`."""
    row = tl.program_id(0)
    context = tl.load(context_lens + row)
    table_row = block_table + row.to(tl.int64) * table_width * 2
    bits = tl.zeros([BLOCK], tl.int32)
    for first in range(0, table_width, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        there = entry < table_width
        known = page_or_null(tl.load(table_row + entry * 2, mask=there, other=0), num_pages)
        fill = tl.load(page_places + known, mask=there, other=0) & _FILL_MASK
        bits |= tl.where(there & (fill < needed_fill(context, entry, PAGE)), _FILL, 0)
    word = tl.load(verdict + row)
    word |= tl.where(any_of(bits, _FILL) != 0, _FILL | _UNCONCLUDED, 0)
    tl.store(verdict + row, tl.where(word == _UNCONCLUDED, step, word))


@on_device_of_tensors
def check_rows(
    *,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    nonces: torch.Tensor,
    bindings: torch.Tensor,
    page_tags: torch.Tensor,
    page_places: torch.Tensor,
    page_size: int,
    verdict: torch.Tensor,
) -> None:
    """As `reference.integrity.check_rows`; raises KernelInputError for dtypes, shapes and layout."""
    rows, num_pages = verdict.shape[0], page_tags.shape[0]
    _check_records(page_size, page_tags=page_tags, page_places=page_places)
    _check_rows(rows, block_table=block_table, context_lens=context_lens, nonces=nonces, verdict=verdict)
    require_shape("query_start", query_start, rows + 1)
    require_dtype("query_start", query_start, torch.int32)
    require_shape("bindings", bindings, rows)
    require_dtype("bindings", bindings, torch.int64)
    require_contiguous(query_start=query_start, bindings=bindings)
    if rows == 0:
        return
    check_row[(rows,)](
        block_table,
        query_start,
        context_lens,
        nonces,
        bindings,
        page_tags,
        page_places,
        verdict,
        block_table.shape[1],
        num_pages,
        PAGE=page_size,
        BLOCK=PAIRS_AT_ONCE,
    )


@on_device_of_tensors
def conclude(
    *,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    page_places: torch.Tensor,
    page_size: int,
    step: int,
    verdict: torch.Tensor,
) -> None:
    """As `reference.integrity.conclude`; raises KernelInputError for dtypes, shapes and layout."""
    rows = verdict.shape[0]
    _check_records(page_size, page_places=page_places)
    _check_rows(rows, block_table=block_table, context_lens=context_lens, verdict=verdict)
    if rows == 0:
        return
    conclude_row[(rows,)](
        block_table,
        context_lens,
        page_places,
        verdict,
        block_table.shape[1],
        page_places.shape[0],
        step,
        PAGE=page_size,
        BLOCK=PAIRS_AT_ONCE,
    )


def _check_records(page_size: int, **records: torch.Tensor) -> None:
    """Page records of one length."""
    require_page_size(page_size)
    num_pages = next(iter(records.values())).shape[0]
    for name, record in records.items():
        require_shape(name, record, num_pages)
        require_dtype(name, record, torch.int32)
    require_contiguous(**records)


def _check_rows(rows: int, *, block_table: torch.Tensor, **words: torch.Tensor) -> None:
    require_shape("block_table", block_table, rows, None, 2)
    require_dtype("block_table", block_table, torch.int32)
    for name, word in words.items():
        require_shape(name, word, rows)
        require_dtype(name, word, torch.int32)
    require_contiguous(block_table=block_table, **words)


_CONCLUDED = dict.fromkeys(("block_table", "context_lens", "page_places", "verdict"), "*i32")
_SIZES = dict.fromkeys(("table_width", "num_pages"), "i32")
_CHECKED = dict.fromkeys(("query_start", "nonces", "page_tags"), "*i32") | {"bindings": "*i64"}
_CONSTANTS = {"PAGE": 64, "BLOCK": PAIRS_AT_ONCE}

AOT_CASES: tuple[AotCase, ...] = (
    AotCase("check_rows", check_row, _CONCLUDED | _SIZES | _CHECKED, _CONSTANTS, max_registers=64),
    AotCase("conclude", conclude_row, _CONCLUDED | _SIZES | {"step": "i32"}, _CONSTANTS, max_registers=40),
)
