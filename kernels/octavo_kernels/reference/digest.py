"""Page digests: an int32 per page that changes with any of its bytes, and that an append only adds to.

The bytes of a page are counted slot by slot, in each slot first the K row, then the V row (MLA pages have one row per
slot and no V): byte i of the page is `slot * row_bytes + offset`. With all arithmetic modulo 2**32, read as int32,

    weight(i) = (i * 0x9E3779B1) | 1
    digest    = sum over the bytes of the slots below the fill mark of (byte + 1) * weight(i)

- Incremental: writing a row adds the terms of its bytes, in any order.
- Relocation-invariant: the page's id does not enter.
- One changed bit changes the digest: it adds or takes 2**k * weight(i) with k < 8, and as the weight is odd this is not
  0 modulo 2**32. Other changes of the content go unseen with a chance of about 2**-32; it is no cryptographic hash.
- `byte + 1` makes a slot of zeros count, so a wrong fill mark shows.

The multiplier is 2**32 divided by the golden ratio, rounded to an odd number (Knuth, TAOCP vol. 3, section 6.4).
Scales beside the pages are not part of the digest.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import require_dtype, require_shape
from octavo_kernels.reference.block_table import in_pool

MULTIPLIER = 0x9E3779B1


def digest_rows(
    *,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    pages: torch.Tensor,
    slots: torch.Tensor,
    digests: torch.Tensor,
) -> None:
    """Add the n rows just stored at (pages[j], slots[j]) to the digests of their pages, in place.

    k_pages and v_pages contiguous [num_pages, page_size, ...] of any dtype, v_pages None for MLA; pages and slots [n]
    int32 or int64; digests [num_pages] int32. A page may come more than once; entries outside the pool (the NULL page
    too) or the page are ignored.
    """
    require_dtype("digests", digests, torch.int32)
    require_shape("digests", digests, k_pages.shape[0])
    require_shape("slots", slots, *pages.shape)
    inside = in_pool(pages, k_pages.shape[0]) & (slots >= 0) & (slots < k_pages.shape[1])
    pages, slots = pages[inside].long(), slots[inside].long()
    rows = _row_bytes(k_pages, v_pages, pages, slots)
    digests.index_add_(0, pages, _terms(rows, slots).sum(dim=1, dtype=torch.int32))


def digest_pages(
    *, k_pages: torch.Tensor, v_pages: torch.Tensor | None, pages: torch.Tensor, fill: torch.Tensor
) -> torch.Tensor:
    """Digests of whole pages as they lie in memory, the slots below `fill` (0 to page_size) of each.

    Shapes as in `digest_rows`, fill [n]; result [n] int32, 0 for an id outside the pool (the NULL page too).
    """
    require_shape("fill", fill, *pages.shape)
    inside = in_pool(pages, k_pages.shape[0])
    slots = torch.arange(k_pages.shape[1], device=k_pages.device)
    digests = torch.zeros(pages.shape, dtype=torch.int32, device=k_pages.device)
    for place in inside.nonzero().flatten().tolist():
        filled = slots[: max(0, int(fill[place]))]
        rows = _row_bytes(k_pages, v_pages, pages[place].long().expand_as(filled), filled)
        digests[place] = _terms(rows, filled).sum(dtype=torch.int32)
    return digests


def _row_bytes(
    k_pages: torch.Tensor, v_pages: torch.Tensor | None, pages: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """The bytes of n slots, K then V: [n, row_bytes] int32."""
    parts = [k_pages] if v_pages is None else [k_pages, v_pages]
    views = [part.view(torch.uint8).flatten(2) for part in parts]
    return torch.cat([view[pages, slots] for view in views], dim=1).int()


def _terms(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    index = slots[:, None] * rows.shape[1] + torch.arange(rows.shape[1], device=rows.device)
    return (rows + 1) * ((index * MULTIPLIER).to(torch.int32) | 1)
