"""Engine: one step after the other. Schedule, batch, forward, sample, and only then ask whether the pages were right.

A token leaves `step()` only when its row's verdict equals the step number and nothing else was found about its pages.
Otherwise it is dropped here, before anyone could have decoded it, and the answer is recomputed once from its own tokens
(when nothing of it was sent yet) or its request ended with `kv_integrity_violation`; the pages that it held are set
aside. What a step wrote becomes shareable only then, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_kernels.formats.verdict import is_clean
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob, Executor, Outcome
from octavo_runtime.engine.faults import FaultInjector
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.messages import EngineStats, FinishReason, RequestFailed, Submit, Token, Violation
from octavo_runtime.engine.request import EngineRequest
from octavo_runtime.engine.result import StepResult
from octavo_runtime.engine.schedule import ScheduledRow
from octavo_runtime.engine.scheduler import Scheduler
from octavo_runtime.engine.violations import (
    Action,
    Found,
    Site,
    ViolationLog,
    found_in_padding,
    found_in_verdict,
)
from octavo_runtime.engine.watchdog import Watchdog
from octavo_runtime.kv.updates import DeviceUpdates

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
    """Requests in, tokens out, over one scheduler and one executor. Not thread-safe: its process has one loop.

    `clock` gives seconds that never go back, `wall_clock` Unix seconds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        builder: BatchBuilder,
        executor: Executor,
        mode: IntegrityMode,
        digests: PageDigests,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        faults: FaultInjector | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._builder = builder
        self._executor = executor
        self._mode = mode
        self._digests = digests
        self._faults = faults
        self._clock = clock
        self._log = ViolationLog(wall_clock)
        self._watchdog = Watchdog()
        self._answers: dict[str, list[EngineRequest]] = {}
        self._refused: list[RequestFailed] = []
        self._arrivals = 0
        self._steps = 0
        self._step_number = 0
        self._preemptions = 0
        self._recomputed = 0
        self._checks = 0
        self._cancelled = 0
        self._audits = 0
        self._moved_checked = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self._scheduler.idle and not self._refused and not self._kv.has_findings

    def submit(self, message: Submit) -> None:
        """Take a request; one that not even the empty pool could hold fails in the next step."""
        needed = self._kv.pages_for(len(message.prompt) + message.max_tokens - 1)
        if needed > self._kv.num_pages - 1:
            text = f"{len(message.prompt)} prompt tokens and {message.max_tokens} of an answer need {needed} KV pages; "
            text += f"there are {self._kv.num_pages - 1} of {self._kv.page_size} tokens"
            self._refused.append(RequestFailed(message.request, KV_POOL_TOO_SMALL, text, retryable=False))
            return
        answers = EngineRequest.answers(message, self._arrivals, self._clock())
        self._arrivals += message.n
        self._answers[message.request] = answers
        for answer in answers:
            self._scheduler.submit(answer)

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """Forget a request, or only its answer `index`; the pages are free for the very next step.

        Unknown ids and answers are ignored.
        """
        for answer in list(self._answers.get(request_id, ())):
            if index is None or answer.index == index:
                self._forget(answer)
                self._scheduler.remove(answer)

    def step(self) -> StepResult:
        """Run one step; empty when nothing can run."""
        draft = _Draft(failures=self._refused)
        self._refused = []
        if self._faults is not None:
            self._faults.before_schedule(self._following_step(), self._scheduler)
        schedule = self._scheduler.schedule()
        if self._faults is not None:
            self._faults.after_schedule(schedule.rows)
        self._preemptions += len(schedule.preempted)
        for request in schedule.impossible:
            if request.id in self._answers:  # its request did not fail a moment ago with another answer
                self._fail_impossible(request, schedule.impossible, draft)
        self._check_host(draft)
        rows = [row for row in schedule.rows if row.request.holding is not None]
        if rows:
            self._run(rows, draft)
        return draft.result()

    def audit(self) -> None:
        """Full audit of the pool; raises PoolCorrupt. For moments without work: it visits every page."""
        self._kv.check_integrity(self._scheduler.holdings())
        self._audits += 1

    def self_check(self) -> None:
        """Ask the check about a row without pages, for moments without work; `stats()` tells whether it answered."""
        if self._mode is not IntegrityMode.OFF:
            step = self._next_step()
            self._watchdog.saw_self_check(self._executor.self_check(step), step, self._executor.checks)

    def stats(self) -> EngineStats:
        """Counters since start and gauges of this moment."""
        kv, scheduler = self._kv, self._scheduler
        return EngineStats(
            steps=self._steps,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_tokens_used=kv.used_pages * kv.page_size,
            kv_pages_free=kv.free_pages,
            kv_pages_set_aside=kv.set_aside_pages,
            preemptions=self._preemptions,
            recomputed=self._recomputed,
            integrity_checks=self._checks,
            integrity_violations=dict(self._log.by_reason),
            integrity_cancelled=self._cancelled,
            kv_tokens_retained=kv.retained_pages * kv.page_size,
            waiting_tokens=scheduler.waiting_tokens,
            prefix_queried_tokens=kv.counters.queried_tokens,
            prefix_hit_tokens=kv.counters.hit_tokens,
            forks=kv.counters.forks,
            pages_copied=kv.counters.pages_copied,
            digests_checked=self._digests.compared + self._moved_checked,
            audits=self._audits,
            integrity_stalled=self._watchdog.stalled,
        )

    def _next_step(self) -> int:
        self._step_number = self._following_step()
        return self._step_number

    def _following_step(self) -> int:
        return self._step_number % LAST_STEP + 1

    def _check_host(self, draft: _Draft) -> None:
        """L0: what the host's own books say, before the step relies on them. Its requests do not run in it."""
        findings = self._kv.take_findings()  # also when nobody looks at them: they would be kept for ever
        if self._mode is IntegrityMode.OFF:
            return
        for finding in (*findings, *self._kv.check_changed()):
            found = Found(Site.HOST, (finding.reason,), pages=(finding.page,))
            self._act_on_page(found, finding.page, draft)

    def _run(self, rows: list[ScheduledRow], draft: _Draft) -> None:
        self._steps += 1
        prepared = self._builder.build(self._next_step(), rows, self._scheduler.slots)
        if self._faults is not None:
            self._faults.after_build(prepared)
        updates = self._kv.take_updates()
        off = self._mode is IntegrityMode.OFF
        job = NO_DIGESTS if off else self._digests.job(rows, self._kv.is_readable)
        outcome = self._executor.execute(prepared, updates, job)
        if not off:
            self._moved_checked += len(updates.copies)
            self._checks += len(rows)
            verdicts = [outcome.verdicts[row.slot] for row in rows]
            self._watchdog.saw_step(verdicts, self._step_number, self._executor.checks)
            self._judge(prepared, updates, job, outcome, draft)
        for row in rows:
            if row.request.holding is not None and row.slot == row.request.slot:
                self._advance(row, outcome.tokens[row.slot], draft)

    def _judge(
        self, prepared: PreparedStep, updates: DeviceUpdates, job: DigestJob, outcome: Outcome, draft: _Draft
    ) -> None:
        """Act on everything that the step found; whoever may not advance holds nothing afterwards."""
        step = self._step_number
        requests = {row.slot: row.request for row in prepared.rows}
        for slot in outcome.disagreements:
            self._builder.rewrite(slot)
            self._act(Found(Site.RANK, ("rank_mismatch",), requests.get(slot)), draft)
        for row in prepared.rows:
            word = outcome.verdicts[row.slot]
            if not is_clean(word, step) and row.slot not in outcome.disagreements:
                self._builder.rewrite(row.slot)
                self._act(found_in_verdict(word, step, row.request), draft)
        for slot in prepared.padding:
            found = found_in_padding(outcome.verdicts[slot], step)
            if found is not None and slot not in outcome.disagreements:
                self._builder.rewrite(slot)
                self._act(found, draft)
        moved = [copy.target for copy, differs in zip(updates.copies, outcome.moved, strict=True) if differs]
        for page in (*moved, *self._digests.took(outcome.digests)):
            self._act_on_page(Found(Site.DIGEST, ("digest",), pages=(page,)), page, draft)

    def _advance(self, row: ScheduledRow, token: int, draft: _Draft) -> None:
        """Book a clean row: its tokens are in the cache, and its new token, if any, may leave."""
        request = row.request
        assert request.holding is not None
        assert request.chain is not None
        request.computed = row.end
        self._kv.commit(request.holding, request.chain, row.start, row.end)
        if not row.samples:
            return
        request.tokens.append(token)
        finish = None
        if token in request.stop_tokens:
            finish = FinishReason.STOP
        elif request.num_generated >= request.max_tokens:
            finish = FinishReason.LENGTH
        draft.tokens.append(Token(request.id, token, finish, request.index))
        if finish is not None:
            self._forget(request)
            self._scheduler.remove(request)

    def _act_on_page(self, found: Found, page: int, draft: _Draft) -> None:
        """Act on a finding about a page: it is one about each request that holds it, and nobody else gets the page."""
        holders = self._scheduler.holders_of(page)
        self._kv.drop_pages((page,))
        for request in holders:
            if request.holding is not None:  # not ended a moment ago with another answer to the same prompt
                self._act(Found(found.site, found.reasons, request, found.pages), draft)
        if not holders:
            self._act(found, draft)

    def _act(self, found: Found, draft: _Draft) -> None:
        """Record a finding and let follow what the mode and the request's state ask for."""
        request = found.request
        if request is None:
            draft.violations.append(self._log.record(found, self._step_number, Action.NONE))
            return
        if request.holding is None:
            return  # ended by an earlier finding of this step
        if self._mode is IntegrityMode.REPORT:
            draft.violations.append(self._log.record(found, self._step_number, Action.REPORTED))
            request.holding.suspect = True  # what it has written is used, but by nobody else
        elif not request.num_generated and not request.recomputed:
            draft.violations.append(self._log.record(found, self._step_number, Action.RECOMPUTED))
            request.recomputed = True
            self._recomputed += 1
            self._restart(request, set_aside=found.against_pages)
        else:
            draft.violations.append(self._log.record(found, self._step_number, Action.CANCELLED))
            self._cancel_all(request, found, draft)

    def _restart(self, request: EngineRequest, *, set_aside: bool) -> None:
        """Compute an answer again, and with it those that have just forked from it: what this step has copied for them
        is as little to be trusted as its own pages."""
        for answer in self._answers[request.id]:
            if answer is request:
                self._scheduler.restart(answer, set_aside=set_aside)
            elif answer.parent is request and answer.holding is not None and not answer.num_generated:
                self._scheduler.restart(answer)

    def _cancel_all(self, request: EngineRequest, found: Found, draft: _Draft) -> None:
        """End a request because of one of its answers; only that one's pages are set aside."""
        self._cancelled += 1
        for answer in self._answers.pop(request.id):
            self._scheduler.remove(answer, set_aside=answer is request and found.against_pages)
        draft.failures.append(
            RequestFailed(
                request.id,
                KV_INTEGRITY_VIOLATION,
                f"the KV cache pages of this request are not its own any more ({', '.join(found.reasons)}); "
                "its answer was stopped before a wrong token could leave; the same request can be sent again",
                retryable=True,
            )
        )

    def _forget(self, request: EngineRequest) -> None:
        answers = self._answers[request.id]
        answers.remove(request)
        if not answers:
            del self._answers[request.id]

    def _fail_impossible(self, request: EngineRequest, gone: Sequence[EngineRequest], draft: _Draft) -> None:
        """End a request that the pool was large enough for until violations or an error took pages out of it.

        The scheduler has forgotten those in `gone`.
        """
        for answer in self._answers.pop(request.id):
            if answer not in gone:
                self._scheduler.remove(answer)
        kv, needed = self._kv, self._kv.pages_for(len(request.tokens))
        draft.failures.append(
            RequestFailed(
                request.id,
                KV_POOL_TOO_SMALL,
                f"{len(request.tokens)} tokens need {needed} KV pages; "
                f"{kv.usable_pages} are left, {kv.available_pages} of them can be had now, "
                f"{kv.set_aside_pages} are set aside after integrity violations",
                retryable=True,
            )
        )
