"""Integrity: may the row read what its block table points at, and did the step do what it should?

Order within one step, on one stream, all on the very block-table buffer that attention reads:

    1. check_rows   before the first layer: every pair of the row against the page records and the row's binding
    2. kv_write     in each layer, before that layer's attention: marks the row when it refuses a store
    3. conclude     after the last layer: the pages hold the row's whole context now, and nothing was found

Page records change only between steps (on a GPU: on the same stream), but for the fill mark, which the last layer's
write advances. So what was checked in 1 is what attention reads in 2. The verdict becomes the step number only in 3,
and only from the exact word that 1 leaves for a clean row: leaving out any of the checks, or an old verdict, is a
violation. A row that fails still runs through the layers (ids outside the pool read the NULL page, stores are
refused); its token is dropped by whoever reads the verdict.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import require_dtype, require_shape
from octavo_kernels.formats.binding import mix_tensor
from octavo_kernels.formats.place import fill_of, logical_of, require_page_size
from octavo_kernels.formats.verdict import UNCONCLUDED, Finding, word_of
from octavo_kernels.reference.block_table import NULL_PAGE, clamp_pages, in_pool


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
    """Check every row's pairs and overwrite its verdict word with UNCONCLUDED | findings.

    block_table [R, P, 2] int32 of (page, tag), unused entries (NULL_PAGE, 0); query_start [R + 1], context_lens,
    nonces [R] int32; bindings [R] int64; page records [num_pages] int32
    (`page_places` as in `formats.place`); verdict [R] int32.

    Every entry that is not (NULL_PAGE, 0) counts as held and is checked, and the binding is the sum over exactly
    these; the first ceil(context / page_size) entries must be held. Of them, page `i` must be filled as far as the
    tokens before this step reach.
    """
    require_page_size(page_size)
    require_dtype("block_table", block_table, torch.int32)
    require_shape("block_table", block_table, verdict.shape[0], None, 2)
    page_ids, tags = block_table.unbind(dim=-1)
    pages = clamp_pages(page_ids, page_tags.shape[0])
    places = page_places[pages]
    logical = torch.arange(block_table.shape[1], device=block_table.device)
    needed = _needed_fill(context_lens, logical, page_size) > 0
    held = (page_ids != NULL_PAGE) | (tags != 0)
    before = context_lens - query_start.diff()
    beyond_table = context_lens > block_table.shape[1] * page_size
    terms = mix_tensor(nonces[:, None], logical, page_ids, tags)
    checks = {
        Finding.RANGE: ((held | needed) & ~in_pool(page_ids, page_tags.shape[0])).any(dim=1) | beyond_table,
        Finding.TAG: (held & (page_tags[pages] != tags)).any(dim=1),
        Finding.LOGICAL: (held & (logical_of(places) != logical)).any(dim=1),
        Finding.FILL: (fill_of(places) < _needed_fill(before, logical, page_size)).any(dim=1),
        Finding.BINDING: torch.where(held, terms, 0).sum(dim=1) != bindings,
    }
    word = torch.full_like(verdict, UNCONCLUDED)
    for finding, found in checks.items():
        word |= torch.where(found, int(finding), 0).to(word.dtype)
    verdict.copy_(word)


def conclude(
    *,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    page_places: torch.Tensor,
    page_size: int,
    step: int,
    verdict: torch.Tensor,
) -> None:
    """Write `step` for each row that check_rows and every KV write found clean and whose context is filled.

    Shapes as in `check_rows`. Other rows keep their word, with FILL added where the last layer did not store.
    """
    require_page_size(page_size)
    pages = clamp_pages(block_table[..., 0], page_places.shape[0])
    logical = torch.arange(block_table.shape[1], device=block_table.device)
    unfilled = (fill_of(page_places[pages]) < _needed_fill(context_lens, logical, page_size)).any(dim=1)
    verdict |= torch.where(unfilled, word_of(Finding.FILL), 0).to(verdict.dtype)
    verdict.copy_(torch.where(verdict == UNCONCLUDED, step, verdict))


def _needed_fill(tokens: torch.Tensor, logical: torch.Tensor, page_size: int) -> torch.Tensor:
    """Tokens that page `logical` of each row holds when the row has `tokens` of them: [R, P]."""
    return (tokens[:, None] - logical * page_size).clamp(0, page_size)
