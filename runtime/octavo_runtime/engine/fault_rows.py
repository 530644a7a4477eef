"""Faults in one step's rows: what a wrong kernel, a race or a stray write would do to the device's block table.

Each function chooses a victim in a prepared step and says which entries of the block table (the very buffer that check,
KV write and attention read) become what.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo_runtime.engine.fault_pages import Damage, used_page
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.schedule import ScheduledRow
from octavo_runtime.engine.scheduler import Scheduler
from octavo_runtime.kv.holding import Holding

LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Entry:
    """One entry of the block table and what it becomes."""

    row: int
    column: int
    page: int
    tag: int


@dataclass
class TableEdit:
    """Entries to change, and how to change them back."""

    entries: tuple[Entry, ...]
    _before: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def done(self) -> bool:
        """Whether the table is damaged now."""
        return self._before is not None

    @torch.inference_mode()
    def apply(self, table: torch.Tensor) -> None:
        """Damage `table` [R, P, 2] in place."""
        rows, columns = self._places(table)
        self._before = table, table[rows, columns].clone()
        table[rows, columns] = self._pairs(table)

    @torch.inference_mode()
    def undo(self) -> None:
        """Give the table its entries back."""
        if self._before is not None:
            table, pairs = self._before
            table[self._places(table)] = pairs
            self._before = None

    def copy_of(self, table: torch.Tensor) -> torch.Tensor:
        """A damaged copy."""
        damaged = table.clone()
        damaged[self._places(table)] = self._pairs(table)
        return damaged

    def _places(self, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.tensor([entry.row for entry in self.entries], device=table.device)
        return rows, torch.tensor([entry.column for entry in self.entries], device=table.device)

    def _pairs(self, table: torch.Tensor) -> torch.Tensor:
        pairs = torch.tensor([(entry.page, entry.tag) for entry in self.entries], dtype=torch.int64)
        return _as_int32(pairs).to(table.device)


@dataclass(frozen=True)
class RowFault:
    """What goes wrong in a step."""

    damage: Damage
    edit: TableEdit


Choose = Callable[[random.Random, Scheduler, PreparedStep], RowFault | None]


def wrong_page(rng: random.Random, scheduler: Scheduler, step: PreparedStep) -> RowFault | None:
    """Another request's page id, the tag left as it was."""
    row, column = _entry(rng, step, scheduler)
    page = used_page(rng, scheduler, but=_holding(row).pages)
    if page is None:
        return None
    return _one(row, Entry(row.slot, column, page, _holding(row).tags[column]), (page,))


def wrong_pair(rng: random.Random, scheduler: Scheduler, step: PreparedStep) -> RowFault | None:
    """Another request's page id with its tag."""
    row, column = _entry(rng, step, scheduler)
    page = used_page(rng, scheduler, but=_holding(row).pages)
    if page is None:
        return None
    return _one(row, Entry(row.slot, column, page, scheduler.kv._pool.book.tag[page]), (page,))


def wrong_row(rng: random.Random, scheduler: Scheduler, step: PreparedStep) -> RowFault | None:
    """All pairs of another request."""
    row = rng.choice(step.rows)
    own = _holding(row)
    others = [r for r in scheduler.running if r.holding is not None and not set(r.holding.pages) <= set(own.pages)]
    if not others:
        return None
    other = rng.choice(others)
    assert other.holding is not None
    pairs = [*other.holding.pairs(), *[(0, 0)] * (len(own.pages) - len(other.holding.pages))]
    entries = tuple(Entry(row.slot, column, *pair) for column, pair in enumerate(pairs))
    damage = Damage((row.request.id,), (), f"row {row.slot} became that of {other.id}")
    return RowFault(damage, TableEdit(entries))


def permuted_pages(rng: random.Random, scheduler: Scheduler, step: PreparedStep) -> RowFault | None:
    """Two of the request's own pages change places."""
    rows = [row for row in step.rows if _needed(row, scheduler) > 1]
    if not rows:
        return None
    row = rng.choice(rows)
    pairs = list(_holding(row).pairs())
    first, second = rng.sample(range(_needed(row, scheduler)), 2)
    entries = (Entry(row.slot, first, *pairs[second]), Entry(row.slot, second, *pairs[first]))
    damage = Damage((row.request.id,), (), f"entries {first} and {second} of row {row.slot} changed places")
    return RowFault(damage, TableEdit(entries))


def out_of_range(rng: random.Random, scheduler: Scheduler, step: PreparedStep) -> RowFault | None:
    """A page id that the pool does not have."""
    row, column = _entry(rng, step, scheduler)
    num_pages = scheduler.kv.num_pages
    page = rng.choice([0, -1, -num_pages, num_pages, num_pages + rng.randrange(1, 1000), LARGEST_INT32])
    return _one(row, Entry(row.slot, column, page, _holding(row).tags[column]), ())


def padding_write(rng: random.Random, scheduler: Scheduler, step: PreparedStep) -> RowFault | None:
    """A padding row points at a used page, with its tag or without."""
    page = used_page(rng, scheduler)
    if not step.padding or page is None:
        return None
    slot, tag = rng.choice(step.padding), rng.choice([0, scheduler.kv._pool.book.tag[page]])
    damage = Damage((), (page,), f"padding row {slot} points at page {page}, tag {tag}")
    return RowFault(damage, TableEdit((Entry(slot, 0, page, tag),)))


def stale_write(rng: random.Random, scheduler: Scheduler, step: PreparedStep) -> RowFault | None:
    """For the KV write only: the page of the row's last token is somebody else's, with its tag or the row's own."""
    row = rng.choice(step.rows)
    holding, column = _holding(row), _needed(row, scheduler) - 1
    page = used_page(rng, scheduler, but=holding.pages)
    if page is None:
        return None
    tag = rng.choice([holding.tags[column], scheduler.kv._pool.book.tag[page]])
    return _one(row, Entry(row.slot, column, page, tag), (page,))


def _one(row: ScheduledRow, entry: Entry, pages: tuple[int, ...]) -> RowFault:
    detail = f"entry {entry.column} of row {entry.row} became page {entry.page}, tag {entry.tag}"
    return RowFault(Damage((row.request.id,), pages, detail), TableEdit((entry,)))


def _entry(rng: random.Random, step: PreparedStep, scheduler: Scheduler) -> tuple[ScheduledRow, int]:
    """An entry that the step reads or writes."""
    row = rng.choice(step.rows)
    return row, rng.randrange(_needed(row, scheduler))


def _needed(row: ScheduledRow, scheduler: Scheduler) -> int:
    """Pages that the row's context fills in this step."""
    return scheduler.kv.pages_for(row.end)


def _holding(row: ScheduledRow) -> Holding:
    assert row.request.holding is not None
    return row.request.holding


def _as_int32(values: torch.Tensor) -> torch.Tensor:
    """u32 bit patterns of int64 values."""
    return ((values + 2**31) % 2**32 - 2**31).to(torch.int32)
