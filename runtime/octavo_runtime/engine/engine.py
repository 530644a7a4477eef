"""Engine: one step after the other. Schedule, batch, forward, sample, and only then ask whether the pages were right.

A token leaves `step()` only when its row's verdict equals the step number. Otherwise it is dropped here, before anyone
could have decoded it, and the request is recomputed once from its own tokens (when nothing of its answer was sent yet)
or ended with `kv_integrity_violation`; the pages that it held are set aside.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from octavo_kernels.formats.verdict import is_clean, reasons_of
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.executor import Executor
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.messages import (
    VIOLATION_PAGES,
    EngineStats,
    FinishReason,
    RequestFailed,
    Submit,
    Token,
    Violation,
)
from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.engine.result import StepResult
from octavo_runtime.engine.scheduler import Schedule, ScheduledRow, Scheduler

LAST_STEP = 2**31 - 1
"""Step numbers are int32 and never 0; after the last one they start at 1 again."""

KV_INTEGRITY_VIOLATION = "kv_integrity_violation"
KV_POOL_TOO_SMALL = "kv_pool_too_small"


@dataclass
class _Draft:
    tokens: list[Token] = field(default_factory=list)
    failures: list[RequestFailed] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def result(self) -> StepResult:
        return StepResult(tuple(self.tokens), tuple(self.failures), tuple(self.violations))


class Engine:
    """Requests in, tokens out, over one scheduler and one executor. Not thread-safe: its process has one loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        builder: BatchBuilder,
        executor: Executor,
        mode: IntegrityMode,
    ) -> None:
        self._scheduler = scheduler
        self._builder = builder
        self._executor = executor
        self._mode = mode
        self._requests: dict[str, EngineRequest] = {}
        self._arrivals = 0
        self._steps = 0
        self._step_number = 0
        self._preemptions = 0
        self._recomputed = 0
        self._checks = 0
        self._violations: Counter[str] = Counter()
        self._cancelled_by_violation = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self._scheduler.idle

    def submit(self, message: Submit) -> None:
        """Take a request; its length was checked against the pool and the context by admission."""
        self._arrivals += 1
        request = EngineRequest.of(message, self._arrivals)
        self._requests[request.id] = request
        self._scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        """Forget a request; its pages are free for the very next step. Unknown ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._scheduler.remove(request)

    def step(self) -> StepResult:
        """Run one step; empty when nothing can run."""
        schedule = self._scheduler.schedule()
        self._preemptions += len(schedule.preempted)
        draft = _Draft()
        for request in schedule.impossible:
            self._fail_impossible(request, draft)
        if schedule.rows:
            self._run(schedule, draft)
        return draft.result()

    def audit(self) -> None:
        """Full audit of the pool; raises PoolCorrupt. For moments without work: it visits every page."""
        self._scheduler.pool.check_integrity(self._scheduler.holdings())

    def stats(self) -> EngineStats:
        """Counters since start and gauges of this moment."""
        pool = self._scheduler.pool
        return EngineStats(
            steps=self._steps,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_tokens_used=pool.used_pages * pool.page_size,
            kv_pages_free=pool.free_pages,
            kv_pages_set_aside=pool.set_aside_pages,
            preemptions=self._preemptions,
            recomputed=self._recomputed,
            integrity_checks=self._checks,
            integrity_violations=dict(self._violations),
            integrity_cancelled=self._cancelled_by_violation,
        )

    def _run(self, schedule: Schedule, draft: _Draft) -> None:
        self._steps += 1
        self._step_number = self._step_number % LAST_STEP + 1
        batch = self._builder.build(self._step_number, schedule.rows)
        sampling = [row.request for row in schedule.rows if row.samples]
        outcome = self._executor.execute(batch, self._scheduler.pool.take_updates(), sampling)
        self._checks += 0 if self._mode is IntegrityMode.OFF else len(schedule.rows)
        sampled = iter(outcome.tokens)
        for row, verdict in zip(schedule.rows, outcome.verdicts, strict=True):
            token = next(sampled) if row.samples else None
            if is_clean(verdict, self._step_number) or not self._violated(row, verdict, draft):
                self._advance(row, token, draft)

    def _advance(self, row: ScheduledRow, token: int | None, draft: _Draft) -> None:
        """Book a clean row: its tokens are in the cache, and its new token, if any, may leave."""
        request = row.request
        assert request.holding is not None
        request.computed = row.end
        self._scheduler.pool.filled(request.holding, row.start, row.end)
        if token is None:
            return
        request.tokens.append(token)
        finish = None
        if token in request.stop_tokens:
            finish = FinishReason.STOP
        elif request.num_generated >= request.max_tokens:
            finish = FinishReason.LENGTH
        draft.tokens.append(Token(request.id, token, finish))
        if finish is not None:
            self._end(request)

    def _violated(self, row: ScheduledRow, verdict: int, draft: _Draft) -> bool:
        """Count a row that is not clean and act by mode; False when its token may leave all the same."""
        if self._mode is IntegrityMode.OFF:
            return False
        request = row.request
        reasons = reasons_of(verdict, self._step_number)
        self._violations.update(reasons)
        pages = tuple(request.holding.pages[:VIOLATION_PAGES]) if request.holding else ()
        number = sum(self._violations.values())
        draft.violations.append(
            Violation(number, time.time(), self._step_number, "table", reasons, request.id, pages, "cancelled")
        )
        if self._mode is IntegrityMode.REPORT:
            return False
        if not request.num_generated and not request.recomputed:
            request.recomputed = True
            self._recomputed += 1
            self._scheduler.restart(request, set_aside=True)
            return True
        self._cancelled_by_violation += 1
        self._end(request, set_aside=True)
        draft.failures.append(
            RequestFailed(
                request.id,
                KV_INTEGRITY_VIOLATION,
                f"the KV cache pages of this request are not its own any more ({', '.join(reasons)}); "
                "its answer was stopped before a wrong token could leave; the same request can be sent again",
                retryable=True,
            )
        )
        return True

    def _end(self, request: EngineRequest, *, set_aside: bool = False) -> None:
        del self._requests[request.id]
        self._scheduler.remove(request, set_aside=set_aside)

    def _fail_impossible(self, request: EngineRequest, draft: _Draft) -> None:
        """End a request that the pool was large enough for until violations took pages out of it."""
        del self._requests[request.id]
        pool = self._scheduler.pool
        draft.failures.append(
            RequestFailed(
                request.id,
                KV_POOL_TOO_SMALL,
                f"{len(request.tokens)} tokens need {pool.pages_for(len(request.tokens))} KV pages; "
                f"{pool.usable_pages} are left, {pool.set_aside_pages} are set aside after integrity violations",
                retryable=True,
            )
        )
