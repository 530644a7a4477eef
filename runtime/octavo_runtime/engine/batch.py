"""Batch: one step's work, as the model and every kernel see it.

It carries everything that a step needs, the verdict buffer included; nothing of a step lives in a module global.
R rows (one per scheduled request), T tokens (all rows' new tokens, row after row), P block-table entries per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """Inputs of one step on one rank, and the buffer its verdicts are written to."""

    step: int
    """Counts steps from 1; a row is clean only when its verdict equals this number. Fits int32 and is never 0."""
    token_ids: torch.Tensor
    """[T] int64."""
    positions: torch.Tensor
    """[T] int64, position of each token within its request, from 0."""
    token_rows: torch.Tensor
    """[T] int64, the row that each token belongs to; ascending."""
    query_start: torch.Tensor
    """[R + 1] int32, first token of each row in [T]; the last entry is T."""
    context_lens: torch.Tensor
    """[R] int32, tokens of the request that are in the cache after this step's writes."""
    block_table: torch.Tensor
    """[R, P, 2] int32, (page, tag) pairs; unused entries are (NULL_PAGE, 0). Attention, the KV write and the integrity
    check all read this very buffer."""
    nonces: torch.Tensor
    """[R] int32 (u32 bits), each request's writer nonce; never WRITER_NULL or WRITER_SHARED."""
    bindings: torch.Tensor
    """[R] int64, sum of mix(nonce, logical index, page, tag) over every pair the request holds, kept by the allocator
    and uploaded apart from the block table; the device recomputes it over all entries that are not (NULL_PAGE, 0)."""
    sample_tokens: torch.Tensor
    """[S] int64, indices into [T] whose logits are wanted (the last token of each row that samples)."""
    verdict: torch.Tensor
    """[R] int32, zero before the step, and `step` after it for each clean row. Any other word is a violation; a
    negative one carries what was found (`octavo_kernels.formats.verdict`)."""

    @property
    def num_rows(self) -> int:
        """Scheduled requests in this step."""
        return self.context_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        """New tokens in this step, all rows together."""
        return self.token_ids.shape[0]
