"""FaultInjector: plants the faults that the KV integrity check claims to see, on purpose and by chance.

For `octavo serve --inject-fault` and for the campaign of the tests. At most one fault in a step, and only where there
is a victim. Without plans the engine has no injector, and its operations are not wrapped.

    before_schedule   pool and prefix cache       a wrong allocator, past the refusals of the real one
    after_schedule    adoption, publication
    after_build       block table, stores, check  done by the instrumented operations while the step runs
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from octavo_kernels.catalogue import Operations
from octavo_kernels.operations import CheckRows, KvWrite, MlaWrite
from octavo_runtime.engine import fault_pages, fault_rows
from octavo_runtime.engine.fault_kinds import FaultKind, FaultPlan
from octavo_runtime.engine.fault_pages import Damage, Settle
from octavo_runtime.engine.fault_rows import TableEdit
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.logs import logger
from octavo_runtime.engine.schedule import ScheduledRow
from octavo_runtime.engine.scheduler import Scheduler

log = logger("faults")

REMEMBERED = 1000
"""Planted faults kept for whoever wants to read them."""

IN_POOL: dict[FaultKind, Callable[[random.Random, Scheduler], Settle | None]] = {
    FaultKind.USE_AFTER_FREE: fault_pages.use_after_free,
    FaultKind.TWO_OWNERS: fault_pages.two_owners,
    FaultKind.DOUBLE_FREE: fault_pages.double_free,
    FaultKind.READ_BEFORE_READY: fault_pages.tokens_skipped,
    FaultKind.STALE_PREFIX: fault_pages.stale_entry,
    FaultKind.INCOMPLETE_PUBLISH: fault_pages.entry_before_full,
}
IN_SCHEDULE: dict[FaultKind, Callable[[random.Random, Scheduler, Sequence[ScheduledRow]], Damage | None]] = {
    FaultKind.STALE_PREFIX: fault_pages.stale_adoption,
    FaultKind.INCOMPLETE_PUBLISH: fault_pages.early_publication,
}
IN_TABLE: dict[FaultKind, fault_rows.Choose] = {
    FaultKind.WRONG_PAGE: fault_rows.wrong_page,
    FaultKind.WRONG_PAIR: fault_rows.wrong_pair,
    FaultKind.WRONG_ROW: fault_rows.wrong_row,
    FaultKind.PERMUTED_PAGES: fault_rows.permuted_pages,
    FaultKind.OUT_OF_RANGE: fault_rows.out_of_range,
    FaultKind.PADDING_WRITE: fault_rows.padding_write,
}
EITHER_STAGE = 0.5
"""A kind that can be planted at two stages leaves the earlier one out this often."""


@dataclass(frozen=True)
class Planted:
    """One fault."""

    step: int
    """Number of the step in which it was planted."""
    kind: FaultKind
    requests: tuple[str, ...]
    """Who would read or write wrongly; empty where it is nobody's request."""
    pages: tuple[int, ...]
    """Pages that are not what they were, or that are pointed at from where they should not be."""
    detail: str


@dataclass
class _Armed:
    """What the operations of the current step do wrong."""

    table: TableEdit | None = None
    write: TableEdit | None = None
    """In the KV write of layer `write_layer` only."""
    write_layer: int = 0
    lost_row: int | None = None
    """Row whose stores do not happen, in no layer."""
    no_check: bool = False


class FaultInjector:
    """Plants faults by plan; drawn from `seed`, so the same run plants the same faults."""

    def __init__(self, plans: Sequence[FaultPlan], seed: int = 0) -> None:
        self.planted: list[Planted] = []
        """The latest `REMEMBERED`, oldest first."""
        self.count = 0
        self.active = True
        """Off during the warm-up, which is a self-test."""
        self._plans = tuple(plans)
        self._rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._step = 0
        self._scheduler: Scheduler | None = None
        self._wanted: list[FaultKind] = []
        self._settle: tuple[FaultKind, Settle] | None = None
        self._armed = _Armed()
        self._layer = 0
        self._layers = 1

    def before_schedule(self, step: int, scheduler: Scheduler) -> None:
        """Undo what the last step saw, draw this step's faults, and plant those of the pool. `step` is its number."""
        if self._armed.table is not None:
            self._armed.table.undo()
        self._armed = _Armed()
        self._step, self._scheduler, self._settle = step, scheduler, None
        self._wanted = [plan.kind for plan in self._plans if self.active and self._rng.random() < plan.rate]
        self._rng.shuffle(self._wanted)
        for kind in self._wanted:
            two_stages = kind in IN_SCHEDULE or kind is FaultKind.READ_BEFORE_READY
            if kind not in IN_POOL or (two_stages and self._rng.random() < EITHER_STAGE):
                continue
            settle = IN_POOL[kind](self._rng, scheduler)
            if settle is not None:
                self._settle = kind, settle
                return

    def after_schedule(self, rows: Sequence[ScheduledRow]) -> None:
        """See whether the fault met its victim; plant those of the prefix cache."""
        if self._scheduler is None:
            return
        if self._settle is not None:
            kind, settle = self._settle
            self._plant(kind, settle(rows))
        for kind in self._wanted:
            if kind in IN_SCHEDULE and self._plant(kind, IN_SCHEDULE[kind](self._rng, self._scheduler, rows)):
                return

    def after_build(self, step: PreparedStep) -> None:
        """Choose what goes wrong on the device in this step; the instrumented operations do it."""
        self._layer = 0
        for kind in self._wanted:
            assert self._scheduler is not None
            if kind in IN_TABLE:
                fault = IN_TABLE[kind](self._rng, self._scheduler, step)
                if fault is not None and self._plant(kind, fault.damage):
                    self._armed = _Armed(table=fault.edit)
            elif kind is FaultKind.STALE_WRITE:
                fault = fault_rows.stale_write(self._rng, self._scheduler, step)
                if fault is not None and self._plant(kind, fault.damage):
                    self._armed = _Armed(write=fault.edit, write_layer=self._rng.randrange(self._layers))
            elif kind is FaultKind.READ_BEFORE_READY:
                row = self._rng.choice(step.rows)
                self._plant(kind, Damage((row.request.id,), (), f"stores of row {row.slot} did not happen"))
                self._armed = _Armed(lost_row=row.slot)
            elif kind is FaultKind.CHECK_SKIPPED:
                everyone = tuple({row.request.id for row in step.rows})
                self._plant(kind, Damage(everyone, (), "the check was not launched"))
                self._armed = _Armed(no_check=True)
            if not self._wanted:
                return

    def instrument(self, operations: Operations) -> Operations:
        """The same operations, which do what is armed; the model and the executor must both get these."""
        return replace(
            operations,
            check_rows=self._faulty_check(operations.check_rows),
            kv_write=cast(KvWrite, self._faulty_write(operations.kv_write)),
            mla_write=cast(MlaWrite, self._faulty_write(operations.mla_write)),
        )

    def _faulty_check(self, real: CheckRows) -> CheckRows:
        def check_rows(*, block_table: torch.Tensor, **inputs: Any) -> None:
            self._damage(block_table)
            if not self._armed.no_check:
                real(block_table=block_table, **inputs)

        return check_rows

    def _faulty_write(self, real: Callable[..., None]) -> Callable[..., None]:
        def write(*new: torch.Tensor, block_table: torch.Tensor, **inputs: Any) -> None:
            self._damage(block_table)  # in mode off nobody has called check_rows
            armed, layer = self._armed, self._layer
            self._layer += 1
            if inputs["last_layer"]:
                self._layers = self._layer
            if armed.write is not None and layer == armed.write_layer:
                block_table = armed.write.copy_of(block_table)
            if armed.lost_row is not None:
                kept = inputs["token_rows"] != armed.lost_row
                new = tuple(values[kept] for values in new)
                inputs |= {name: inputs[name][kept] for name in ("token_rows", "positions")}
                if not len(inputs["positions"]):
                    return
            real(*new, block_table=block_table, **inputs)

        return write

    def _damage(self, table: torch.Tensor) -> None:
        if self._armed.table is not None and not self._armed.table.done:
            self._armed.table.apply(table)

    def _plant(self, kind: FaultKind, damage: Damage | None) -> bool:
        """Note a fault; it is the only one of this step."""
        if damage is None:
            return False
        fault = Planted(self._step, kind, damage.requests, damage.pages, damage.detail)
        self.planted = [*self.planted[-REMEMBERED + 1 :], fault]
        self.count += 1
        self._wanted = []
        fields = {"step": fault.step, "kind": kind.value, "requests": ",".join(fault.requests), "detail": fault.detail}
        log.warning("fault planted", extra=fields)
        return True
