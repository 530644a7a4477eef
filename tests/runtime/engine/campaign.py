"""Campaigns over a model-free engine: planted faults under mixed load, and a long run in which nothing is wrong.

Each planted fault must be found in the step in which its victim next runs (or earlier, by the host's own books); every
token that leaves is compared with what the request would get alone; whoever is not concerned must get all of its
answer. `run_clean` counts what is found although nothing is wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from octavo_kernels.catalogue import Operations
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.buffers import StepBuffers
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.engine import KV_INTEGRITY_VIOLATION, Engine
from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob, Executor, LocalExecutor, Outcome
from octavo_runtime.engine.fault_kinds import FaultKind, FaultPlan
from octavo_runtime.engine.faults import FaultInjector, Planted
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.messages import EngineStats, Submit, Violation
from octavo_runtime.engine.result import StepResult
from octavo_runtime.engine.schedule import SchedulerLimits
from octavo_runtime.engine.scheduler import Scheduler
from octavo_runtime.kv.holding import Nonces
from octavo_runtime.kv.manager import KvManager
from octavo_runtime.kv.pool import PagePool
from octavo_runtime.kv.prefix import PrefixCache, PrefixEpoch
from octavo_runtime.kv.updates import DeviceUpdates
from octavo_runtime.models.base import Model
from tests.runtime.engine.null_model import NullModel
from tests.runtime.engine.provenance import CPU, FACTS, OPERATIONS, ProvenanceModel, cache_of, expected_answer
from tests.runtime.engine.traffic import Traffic, TrafficShape

PAGE_SIZE = 4
FAULT_RATE = 0.25
STEPS_PER_ROUND = 2000
DRAIN_STEPS = 1000
SECONDS_PER_STEP = 0.25
USABLE_PAGES = 30
"""A round ends when violations have set so many pages aside that no more than this are left."""


@dataclass(frozen=True)
class Size:
    """Of an engine: so small that requests compete for pages, rows and tokens all the time."""

    pages: int
    page_size: int
    seqs: int
    tokens_per_step: int


CAMPAIGN = Size(pages=48, page_size=PAGE_SIZE, seqs=8, tokens_per_step=24)
CLEAN = Size(pages=20, page_size=16, seqs=4, tokens_per_step=48)
"""Fewer rows and fewer new pages in a step: more steps in a second."""
CLEAN_TRAFFIC = TrafficShape(arrival=0.1, open_limit=8, prompt_limit=120, answer_limit=80)

Spoil = Callable[[Executor], Executor]
"""Makes a defect of the product out of its executor, to see the campaign go red."""


@dataclass(frozen=True)
class KindResult:
    """What became of the faults of one kind."""

    kind: FaultKind
    planted: int
    detected: int
    missed: tuple[Planted, ...]


@dataclass(frozen=True)
class CampaignResult:
    """A campaign over several kinds."""

    by_kind: tuple[KindResult, ...]
    steps: int
    wrong_tokens_out: int
    """Tokens that left and are not what the request would get alone."""
    false_positives: int
    """Violations that no planted fault explains."""
    harmed: tuple[str, ...]
    """Requests that no fault concerned and that failed or never ended, with how."""
    ended: int
    """Requests that ended with the integrity error."""
    recomputed: int
    preemptions: int
    forks: int
    prefix_hit_tokens: int

    @property
    def planted(self) -> int:
        """Faults of all kinds."""
        return sum(result.planted for result in self.by_kind)

    @property
    def detected(self) -> int:
        """Of those, the ones found in time."""
        return sum(result.detected for result in self.by_kind)

    @property
    def green(self) -> bool:
        """Whether every fault was found in time, nothing else was found, and nobody got or lost what he should not."""
        return (self.detected, self.wrong_tokens_out, self.false_positives, self.harmed) == (self.planted, 0, 0, ())


@dataclass(frozen=True)
class CleanResult:
    """A run without faults."""

    steps: int
    false_positives: int
    wrong_tokens_out: int
    """0 where the model has no answers to compare with."""
    requests: int
    preemptions: int
    forks: int
    prefix_hit_tokens: int


class Watched:
    """An executor that remembers who was in its last step."""

    def __init__(self, inner: Executor) -> None:
        self.ran: set[str] = set()
        self._inner = inner

    @property
    def checks(self) -> int:
        return self._inner.checks

    def execute(self, step: PreparedStep, updates: DeviceUpdates, digests: DigestJob = NO_DIGESTS) -> Outcome:
        self.ran = {row.request.id for row in step.rows}
        return self._inner.execute(step, updates, digests)

    def self_check(self, step: int) -> int:
        return self._inner.self_check(step)


@dataclass
class Run:
    """One engine under traffic."""

    engine: Engine
    scheduler: Scheduler
    executor: Watched
    traffic: Traffic
    clock: list[float]
    steps: int = 0

    @classmethod
    def of(
        cls,
        model: Model,
        operations: Operations,
        traffic: Traffic,
        size: Size = CAMPAIGN,
        *,
        injector: FaultInjector | None = None,
        spoil: Spoil | None = None,
    ) -> Run:
        cache = cache_of(size.pages + 1, size.page_size)
        prefix = PrefixCache(PrefixEpoch(FACTS.revision, KvFormat.BF16, size.page_size))
        kv = KvManager(PagePool(cache.num_pages, size.page_size), Nonces(seed=11), prefix)
        scheduler = Scheduler(SchedulerLimits(size.seqs, size.tokens_per_step), kv)
        builder = BatchBuilder(size.seqs, pad_decode_to=(size.seqs + 1,))
        digests = PageDigests(1, cache.num_layers, size.page_size)
        buffers = StepBuffers(builder.max_rows, size.tokens_per_step, 1, CPU)
        local: Executor = LocalExecutor(model, cache, operations, buffers, checks=True)
        executor = Watched(local if spoil is None else spoil(local))
        clock = [0.0]
        engine = Engine(
            scheduler,
            builder,
            executor,
            IntegrityMode.ENFORCE,
            digests,
            clock=lambda: clock[0],
            wall_clock=lambda: clock[0],
            faults=injector,
        )
        return cls(engine, scheduler, executor, traffic, clock)

    def step(self, *, arrivals: bool = True) -> tuple[Submit | None, StepResult]:
        """One step, and what came before it."""
        message = self.traffic.arrival() if arrivals else None
        if message is not None:
            self.engine.submit(message)
        leaver = self.traffic.leaver()
        if leaver is not None:
            self.engine.cancel(leaver)
            self.traffic.ended(leaver)
        self.clock[0] += SECONDS_PER_STEP
        self.steps += 1
        self.executor.ran = set()
        return message, self.engine.step()


@dataclass
class Judge:
    """Compares what leaves an engine with what its requests would get alone, and violations with planted faults."""

    traffic: Traffic
    expected: dict[str, list[int]] = field(default_factory=dict)
    answers: dict[tuple[str, int], int] = field(default_factory=dict)
    """Tokens of each answer that have left."""
    open: list[Planted] = field(default_factory=list)
    detected: list[Planted] = field(default_factory=list)
    missed: list[Planted] = field(default_factory=list)
    wrong_tokens: int = 0
    false_positives: int = 0
    harmed: list[str] = field(default_factory=list)
    ended: int = 0
    concerned: set[str] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)

    def submitted(self, message: Submit) -> None:
        self.expected[message.request] = expected_answer(message.prompt, message.max_tokens)

    def saw(self, result: StepResult, planted: Sequence[Planted], ran: set[str]) -> None:
        """One step's result, the faults planted in it and who ran in it."""
        self._match(result.violations, planted, ran)
        for token in result.tokens:
            answer = token.request, token.index
            place = self.answers[answer] = self.answers.get(answer, 0) + 1
            self.wrong_tokens += self.expected[token.request][place - 1] != token.token
            if token.finish is not None:
                self._finished(token.request)
        for failure in result.failures:
            self.ended += failure.code == KV_INTEGRITY_VIOLATION
            if failure.code != KV_INTEGRITY_VIOLATION or failure.request not in self.concerned:
                self.harmed.append(f"{failure.request}: {failure.code}")
            self.traffic.ended(failure.request)

    def _match(self, violations: Sequence[Violation], planted: Sequence[Planted], ran: set[str]) -> None:
        named = {violation.request for violation in violations}
        pages = {page for violation in violations for page in violation.pages}
        host_pages = {page for violation in violations if violation.site == "host" for page in violation.pages}
        explained: set[str] = set()
        still_open = []
        for fault in [*self.open, *planted]:
            self.touched.update(fault.pages)
            readers = ran.intersection(fault.requests)
            found_on_host = bool(pages.intersection(fault.pages))
            # Another answer of the victim's request may have run, after the victim lost its pages to who came first and
            # the host's books told of the damage.
            if readers and (readers <= named or host_pages.intersection(fault.pages)):
                self.detected.append(fault)
                explained.update(fault.requests)
            elif not readers and (found_on_host or (not fault.requests and "" in named)):
                self.detected.append(fault)
                explained.update(fault.requests or ("",))
            elif readers or not fault.requests:
                self.missed.append(fault)
            elif named.issuperset(fault.requests):
                explained.update(
                    fault.requests
                )  # ended by an earlier fault before it could read: counts as not planted
            else:
                still_open.append(fault)
        self.open = still_open
        for violation in violations:
            if violation.request in explained or self.touched.intersection(violation.pages):
                self.concerned.add(violation.request)
            else:
                self.false_positives += 1

    def _finished(self, request: str) -> None:
        message = self.traffic.open.get(request)
        lengths = [self.answers.get((request, index), 0) for index in range(message.n)] if message else []
        if message and lengths == [message.max_tokens] * message.n:
            self.traffic.ended(request)


def run_campaign(
    faults_per_kind: int,
    seed: int,
    *,
    kinds: Sequence[FaultKind] = tuple(FaultKind),
    operations: Operations = OPERATIONS,
    spoil: Spoil | None = None,
) -> CampaignResult:
    """Plant `faults_per_kind` faults of each kind, each kind in engines of its own.

    `operations` and `spoil` let a test put a defect into the product.
    """
    by_kind: list[KindResult] = []
    judges: list[Judge] = []
    runs: list[tuple[int, EngineStats]] = []
    for kind in kinds:
        number = list(FaultKind).index(kind)
        mine: list[Judge] = []
        while (left := faults_per_kind - sum(len(judge.detected) + len(judge.missed) for judge in mine)) > 0:
            judge, steps, stats = _round(kind, left, seed * 10_007 + 101 * number + len(mine), operations, spoil)
            runs.append((steps, stats))
            mine.append(judge)
            if not judge.detected and not judge.missed:
                break  # no victim in a whole round: reported as fewer planted than asked for
        detected, missed = sum(len(j.detected) for j in mine), tuple(fault for j in mine for fault in j.missed)
        by_kind.append(KindResult(kind, detected + len(missed), detected, missed))
        judges += mine
    return CampaignResult(
        by_kind=tuple(by_kind),
        steps=sum(steps for steps, _ in runs),
        wrong_tokens_out=sum(judge.wrong_tokens for judge in judges),
        false_positives=sum(judge.false_positives for judge in judges),
        harmed=tuple(harm for judge in judges for harm in judge.harmed),
        ended=sum(judge.ended for judge in judges),
        recomputed=sum(stats.recomputed for _, stats in runs),
        preemptions=sum(stats.preemptions for _, stats in runs),
        forks=sum(stats.forks for _, stats in runs),
        prefix_hit_tokens=sum(stats.prefix_hit_tokens for _, stats in runs),
    )


def run_clean(steps: int, seed: int, *, answers: bool = False) -> CleanResult:
    """Random traffic without faults for `steps` steps; with `answers` the provenance model compares each token."""
    traffic = Traffic(seed, CLEAN_TRAFFIC)
    null = NullModel(OPERATIONS)
    if answers:
        run = Run.of(ProvenanceModel(), OPERATIONS, traffic, CLEAN)
    else:
        run = Run.of(null, replace(OPERATIONS, sample=null.sample), traffic, CLEAN)
    judge = Judge(traffic)
    violations = requests = 0
    gc.freeze()  # what is imported need not be looked through again and again
    while run.steps < steps:
        message, result = run.step()
        requests += message is not None
        violations += len(result.violations) + len(result.failures)
        if answers:
            if message is not None:
                judge.submitted(message)
            judge.saw(result, (), run.executor.ran)
        else:
            _count(result, judge)
    gc.unfreeze()
    run.engine.audit()
    stats = run.engine.stats()
    return CleanResult(
        steps, violations, judge.wrong_tokens, requests, stats.preemptions, stats.forks, stats.prefix_hit_tokens
    )


def _round(
    kind: FaultKind, faults: int, seed: int, operations: Operations, spoil: Spoil | None
) -> tuple[Judge, int, EngineStats]:
    """Up to `faults` faults in one engine, then until it is idle; its books must balance in the end."""
    injector = FaultInjector([FaultPlan(kind, FAULT_RATE)], seed)
    faulty = injector.instrument(operations)
    traffic = Traffic(seed)
    run = Run.of(ProvenanceModel(operations=faulty), faulty, traffic, injector=injector, spoil=spoil)
    judge = Judge(traffic)
    drained = 0
    while drained < DRAIN_STEPS and not (drained and run.engine.idle):
        stopping = run.steps >= STEPS_PER_ROUND or run.scheduler.kv.usable_pages <= USABLE_PAGES
        if drained or stopping or injector.count >= faults:
            injector.active = False
            drained += 1
        before = injector.count
        message, result = run.step(arrivals=not drained)
        if message is not None:
            judge.submitted(message)
        new = injector.planted[len(injector.planted) - (injector.count - before) :]
        judge.saw(result, new, run.executor.ran)
    run.engine.step()  # what the last releases found in passing
    run.engine.audit()
    judge.missed += judge.open
    judge.harmed += [f"{request}: never ended" for request in traffic.open]
    return judge, run.steps, run.engine.stats()


def _count(result: StepResult, judge: Judge) -> None:
    """Follow which requests have ended, without looking at tokens."""
    for token in result.tokens:
        if token.finish is not None:
            answer = token.request, -1
            judge.answers[answer] = judge.answers.get(answer, 0) + 1
            message = judge.traffic.open.get(token.request)
            if message is not None and judge.answers[answer] == message.n:
                judge.traffic.ended(token.request)
                del judge.answers[answer]
