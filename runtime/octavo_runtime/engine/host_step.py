"""HostStep: one step's work as plain arrays, the same for every rank; PreparedStep also knows whose rows they are.

Everything that differs between two steps is here, so a rank in another process needs nothing else to follow: it keeps
its own block table and applies the changes to it. R rows, T tokens, S sampled rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo_runtime.engine.schedule import ScheduledRow

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TableChanges:
    """How the persistent block table [slots, width, 2] differs from the step before; in this order."""

    width: int
    """Entries per row from now on; what is cut off was empty, what is added is."""
    cleared: Int64
    """[c] rows to empty: their requests left."""
    rows: Int64
    """[n] row of each new pair."""
    columns: Int64
    """[n] its place in the row, the logical index of the page."""
    pairs: Int32
    """[n, 2] (page, tag)."""


@dataclass(frozen=True)
class SamplingArrays:
    """What the sampler is told, one entry per sampled row; see `octavo_kernels.formats.sampling`."""

    temperature: Float32
    top_p: Float32
    top_k: Int64
    seed: Int64
    position: Int64


@dataclass(frozen=True)
class HostStep:
    """One step. Row r is slot r of the block table; a row without tokens (query_start equal) is nobody's, or waits."""

    step: int
    """Counts from 1; fits int32."""
    table: TableChanges
    token_ids: Int64
    """[T]."""
    positions: Int64
    """[T]."""
    token_rows: Int64
    """[T], ascending."""
    query_start: Int32
    """[R + 1]."""
    context_lens: Int32
    """[R], 0 for a row without tokens and for padding."""
    nonces: Int32
    """[R], 0 where nobody is."""
    bindings: Int64
    """[R], 0 where nobody is."""
    sample_tokens: Int64
    """[S], indices into [T]."""
    sample_rows: Int64
    """[S], ascending."""
    sampling: SamplingArrays

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)


@dataclass(frozen=True)
class PreparedStep:
    """A step ready to run, and whom its rows belong to. Only `host` has to reach the ranks."""

    host: HostStep
    rows: tuple[ScheduledRow, ...]
    """By slot, ascending: row `rows[i].slot` of the batch is `rows[i]`."""
    padding: tuple[int, ...] = ()
    """Rows that only fill the batch up: one token 0 at position 0 over the NULL page. Their verdict has to be exactly
    `word_of(Finding.RANGE)`: the check found nothing, and the store was refused."""

    @property
    def sampling(self) -> tuple[ScheduledRow, ...]:
        """The rows that end with a new token, in row order."""
        return tuple(row for row in self.rows if row.samples)
