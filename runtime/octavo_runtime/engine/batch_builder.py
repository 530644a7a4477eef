"""BatchBuilder: turns a schedule into a PreparedStep, telling only what changed in the block table.

Rows are slots: a running request keeps its row as long as it runs. The builder remembers how many pairs of each slot
the device has, so the work of a step grows with its rows and new pages and not with the length of contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from octavo_runtime.engine.host_step import HostStep, Int32, Int64, PreparedStep, SamplingArrays, TableChanges
from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.engine.schedule import ScheduledRow

_NOBODY = 0
"""As a nonce: the slot is empty."""
_UNKNOWN = -1
"""As a nonce: what the device has in this row is not what it was told."""

SHRINK_FACTOR = 4
"""The table gets narrower when no row needs more than this part of it: one long request does not cost for ever."""


class BatchBuilder:
    """What the device knows of each slot, and the steps made from it.

    `pad_decode_to` are batch sizes: a step in which every running request decodes gets padding rows up to the next of
    them, so that a captured graph of that size can run it. A step that fits none stays as it is.
    """

    def __init__(self, max_num_seqs: int, pad_decode_to: Sequence[int] = ()) -> None:
        self._buckets = tuple(sorted(pad_decode_to))
        self.max_rows = max((max_num_seqs, *self._buckets))
        """Rows of a step at most, and of the block table."""
        self._width = 1
        self._nonce = [_NOBODY] * self.max_rows
        self._written = [0] * self.max_rows
        self._nonces = np.zeros(self.max_rows, np.uint32)
        self._bindings = np.zeros(self.max_rows, np.int64)
        self._temperature = np.zeros(self.max_rows, np.float32)
        self._top_p = np.ones(self.max_rows, np.float32)
        self._top_k = np.zeros(self.max_rows, np.int64)
        self._seed = np.zeros(self.max_rows, np.int64)

    def build(
        self, step: int, scheduled: Sequence[ScheduledRow], slots: Sequence[EngineRequest | None]
    ) -> PreparedStep:
        """The step of the rows `scheduled` (at least one), in which `slots` are the running requests by slot."""
        rows = sorted(scheduled, key=lambda row: row.slot)
        table = self._table_changes(slots)
        padding = self._padding(rows, slots)
        num_rows = rows[-1].slot + 1 if not padding else max(rows[-1].slot, padding[-1]) + 1
        counts = np.zeros(num_rows, np.int64)
        starts = np.zeros(num_rows, np.int64)
        running = np.array([row.slot for row in rows], np.int64)
        counts[running] = [row.count for row in rows]
        starts[running] = [row.start for row in rows]
        context_lens = starts + counts
        counts[list(padding)] = 1
        ends = counts.cumsum()
        token_rows = np.arange(num_rows, dtype=np.int64).repeat(counts)
        token_ids = np.zeros(int(ends[-1]), np.int64)
        _gather(token_ids, rows, ends)
        sample_rows = np.array(sorted([*padding, *(row.slot for row in rows if row.samples)]), np.int64)
        host = HostStep(
            step=step,
            table=table,
            token_ids=token_ids,
            positions=np.arange(len(token_rows), dtype=np.int64) - (ends - counts - starts)[token_rows],
            token_rows=token_rows,
            query_start=np.concatenate(([0], ends)).astype(np.int32),
            context_lens=context_lens.astype(np.int32),
            nonces=self._nonces[:num_rows].view(np.int32).copy(),
            bindings=self._bindings[:num_rows].copy(),
            sample_tokens=ends[sample_rows] - 1,
            sample_rows=sample_rows,
            sampling=SamplingArrays(
                temperature=self._temperature[sample_rows],
                top_p=self._top_p[sample_rows],
                top_k=self._top_k[sample_rows],
                seed=self._seed[sample_rows],
                position=context_lens[sample_rows],
            ),
        )
        return PreparedStep(host, tuple(rows), padding)

    def rewrite(self, slot: int) -> None:
        """Write the whole row anew in the next step: the device may have something else there than it was told."""
        self._nonce[slot] = _UNKNOWN

    def _padding(self, rows: Sequence[ScheduledRow], slots: Sequence[EngineRequest | None]) -> tuple[int, ...]:
        """Rows to fill a step of decoding requests up with."""
        if not self._buckets or any(row.count > 1 for row in rows) or len(rows) != len(slots) - slots.count(None):
            return ()
        bucket = next((size for size in self._buckets if size > rows[-1].slot), None)
        if bucket is None:
            return ()
        taken = {row.slot for row in rows}
        return tuple(slot for slot in range(bucket) if slot not in taken)

    def _table_changes(self, slots: Sequence[EngineRequest | None]) -> TableChanges:
        cleared: list[int] = []
        rows: list[int] = []
        columns: list[int] = []
        pages: list[int] = []
        tags: list[int] = []
        widest = 1
        only_padding = [None] * (self.max_rows - len(slots))
        for slot, request in enumerate((*slots, *only_padding)):
            holding = None if request is None else request.holding
            nonce = _NOBODY if holding is None else holding.nonce
            if nonce != self._nonce[slot]:
                if self._written[slot] or self._nonce[slot] == _UNKNOWN:
                    cleared.append(slot)
                self._take_slot(slot, nonce, request)
            if holding is None:
                continue
            start, end = self._written[slot], len(holding.pages)
            if start < end:
                rows += [slot] * (end - start)
                columns += range(start, end)
                pages += holding.pages[start:]
                tags += holding.tags[start:]
                self._written[slot] = end
            self._bindings[slot] = holding.binding
            widest = max(widest, end)
        if widest > self._width or widest * SHRINK_FACTOR < self._width:
            self._width = 1 << (widest - 1).bit_length()
        return TableChanges(self._width, _int64(cleared), _int64(rows), _int64(columns), _pairs(pages, tags))

    def _take_slot(self, slot: int, nonce: int, request: EngineRequest | None) -> None:
        self._nonce[slot] = nonce
        self._nonces[slot] = nonce
        self._written[slot] = 0
        self._bindings[slot] = 0
        sampling = None if request is None else request.sampling
        self._temperature[slot] = 0.0 if sampling is None else sampling.temperature
        self._top_p[slot] = 1.0 if sampling is None else sampling.top_p
        self._top_k[slot] = 0 if sampling is None else sampling.top_k
        self._seed[slot] = 0 if sampling is None else sampling.seed


def _gather(token_ids: Int64, rows: Sequence[ScheduledRow], ends: Int64) -> None:
    """Copy each row's new tokens to its place."""
    for row, end in zip(rows, cast(list[int], ends[[row.slot for row in rows]].tolist()), strict=True):
        tokens = row.request.tokens
        if row.count == 1:
            token_ids[end - 1] = tokens[row.start]
        else:
            token_ids[end - row.count : end] = tokens[row.start : row.end]


def _int64(values: list[int]) -> Int64:
    return np.array(values, np.int64)


def _pairs(pages: list[int], tags: list[int]) -> Int32:
    """[n, 2] int32; tags are u32 as bit patterns."""
    return np.array([pages, tags], np.int64).T.astype(np.uint32).view(np.int32).reshape(-1, 2)
