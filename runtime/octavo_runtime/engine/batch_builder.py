"""BatchBuilder: turns a schedule into a Batch, adding to persistent block tables instead of writing them anew.

Each running request has a slot, a row of one table that lives as long as the engine. A step writes only the entries of
pages that are new since the last one, so the Python work per step does not grow with the length of contexts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.engine.scheduler import ScheduledRow
from octavo_runtime.kv.pool import NULL_PAGE


class BatchBuilder:
    """Persistent block table [max_num_seqs, pages per request, 2] on the host, and the batches made from it."""

    def __init__(self, max_num_seqs: int, max_pages: int, device: torch.device) -> None:
        self._table = np.zeros((max_num_seqs, max_pages, 2), dtype=np.int32)
        self._table[..., 0] = NULL_PAGE
        self._written = [0] * max_num_seqs
        self._nonces: list[int | None] = [None] * max_num_seqs
        self._device = device

    def build(self, step: int, rows: Sequence[ScheduledRow]) -> Batch:
        """The batch of `rows`, in their order; R = len(rows), P = the most pages that any of them has."""
        widest = max(self._sync(row.request) for row in rows)
        slots = [_slot(row.request) for row in rows]
        counts = np.array([row.count for row in rows], dtype=np.int64)
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(counts, out=starts[1:])
        tokens: list[int] = []
        for row in rows:
            tokens.extend(row.request.tokens[row.start : row.end])
        first = np.array([row.start for row in rows], dtype=np.int64)
        token_rows = np.repeat(np.arange(len(rows), dtype=np.int64), counts)
        positions = np.arange(starts[-1], dtype=np.int64) - (starts[:-1] - first)[token_rows]
        sampling = np.array([end - 1 for row, end in zip(rows, starts[1:], strict=True) if row.samples], dtype=np.int64)
        nonces = np.array([self._nonces[slot] for slot in slots], dtype=np.int64)
        bindings = [row.request.holding.binding for row in rows if row.request.holding is not None]
        return Batch(
            step=step,
            token_ids=self._upload(np.array(tokens, dtype=np.int64)),
            positions=self._upload(positions),
            token_rows=self._upload(token_rows),
            query_start=self._upload(starts.astype(np.int32)),
            context_lens=self._upload((first + counts).astype(np.int32)),
            block_table=self._upload(np.ascontiguousarray(self._table[slots, :widest])),
            nonces=self._upload(nonces.astype(np.uint32).view(np.int32)),
            bindings=self._upload(np.array(bindings, dtype=np.int64)),
            sample_tokens=self._upload(sampling),
            verdict=torch.zeros(len(rows), dtype=torch.int32, device=self._device),
        )

    def _sync(self, request: EngineRequest) -> int:
        """Write the request's new pairs into its slot; returns how many pairs it has."""
        slot, holding = _slot(request), request.holding
        assert holding is not None
        if self._nonces[slot] != holding.nonce:
            self._table[slot] = (NULL_PAGE, 0)
            self._written[slot], self._nonces[slot] = 0, holding.nonce
        start, end = self._written[slot], len(holding.pages)
        if start < end:
            self._table[slot, start:end, 0] = holding.pages[start:]
            self._table[slot, start:end, 1] = np.array(holding.tags[start:], np.int64).astype(np.uint32).view(np.int32)
            self._written[slot] = end
        return end

    def _upload(self, array: np.ndarray[tuple[int, ...], np.dtype[np.int32 | np.int64]]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _slot(request: EngineRequest) -> int:
    assert request.slot is not None
    return request.slot
