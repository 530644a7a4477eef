"""Reading a block table without trusting it: a page id outside the pool becomes the NULL page."""

from __future__ import annotations

import torch

NULL_PAGE = 0
"""Never written, its tag is zero: what padding rows and page ids outside the pool read."""


def in_pool(page_ids: torch.Tensor, num_pages: int) -> torch.Tensor:
    """Which of the ids name a page that a request can hold: 1 to num_pages - 1."""
    return (page_ids > NULL_PAGE) & (page_ids < num_pages)


def clamp_pages(page_ids: torch.Tensor, num_pages: int) -> torch.Tensor:
    """The ids as int64, those outside the pool replaced by the NULL page."""
    return torch.where(in_pool(page_ids, num_pages), page_ids, NULL_PAGE).long()
