"""Schedule: what the scheduler decided about the next step. Limits, rows, and who could not stay."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_runtime.engine.request import EngineRequest


@dataclass(frozen=True)
class SchedulerLimits:
    """What one step may hold."""

    max_num_seqs: int
    """Requests that run at once."""
    tokens_per_step: int
    """New tokens of all rows together; bounds the time of a step. At least `max_num_seqs`."""

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.tokens_per_step < self.max_num_seqs:
            raise ValueError(
                f"tokens_per_step ({self.tokens_per_step}) must be at least max_num_seqs ({self.max_num_seqs}) "
                "and that at least 1: every running request gets a token in every step"
            )


@dataclass(frozen=True)
class ScheduledRow:
    """One row of the next step: `count` tokens of `request` from its token `start`, in row `slot` of the batch."""

    request: EngineRequest
    slot: int
    start: int
    count: int
    samples: bool
    """Whether the step ends with a new token for this row: it runs the last known one."""

    @property
    def end(self) -> int:
        """Tokens of the request in the cache after the step."""
        return self.start + self.count


@dataclass(frozen=True)
class Schedule:
    """The next step. `impossible` are requests that can never run: too many pages are set aside, or lost."""

    rows: tuple[ScheduledRow, ...]
    preempted: tuple[EngineRequest, ...]
    impossible: tuple[EngineRequest, ...]


@dataclass
class ScheduleDraft:
    """A schedule in the making."""

    budget: int
    """Tokens that the step may still take."""
    rows: dict[int, ScheduledRow] = field(default_factory=dict)
    """By the request's arrival number."""
    preempted: list[EngineRequest] = field(default_factory=list)
    impossible: list[EngineRequest] = field(default_factory=list)

    def put(self, request: EngineRequest, count: int) -> None:
        """Let `request` run its next `count` tokens."""
        assert request.slot is not None
        samples = count == request.pending
        self.rows[request.order] = ScheduledRow(request, request.slot, request.computed, count, samples)
        self.budget -= count

    def drop(self, request: EngineRequest) -> None:
        """Note a preemption; its row, if it had one, leaves the step."""
        row = self.rows.pop(request.order, None)
        self.budget += 0 if row is None else row.count
        self.preempted.append(request)

    def finished(self) -> Schedule:
        """The schedule, rows in the order in which they were put."""
        return Schedule(tuple(self.rows.values()), tuple(self.preempted), tuple(self.impossible))
