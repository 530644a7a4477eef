"""An engine over the provenance model, and a place to plant faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_kernels.catalogue import Operations
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.buffers import LoadedStep, StepBuffers
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.executor import DigestJob, LocalExecutor
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.messages import FinishReason, RequestFailed, Sampling, Submit, Violation
from octavo_runtime.engine.result import StepResult
from octavo_runtime.engine.schedule import ScheduledRow, SchedulerLimits
from octavo_runtime.engine.scheduler import Scheduler
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.holding import Nonces
from octavo_runtime.kv.manager import KvManager
from octavo_runtime.kv.pool import PagePool
from octavo_runtime.kv.prefix import PrefixCache, PrefixEpoch
from tests.runtime.engine.provenance import CPU, FACTS, OPERATIONS, ProvenanceModel, cache_of

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
STEPS_LIMIT = 10_000
START_OF_TIME = 1_700_000_000.0

Fault = Callable[[Batch, Sequence[ScheduledRow]], object]
"""Changes a batch on the device, as a wrong kernel or a race would; row `rows[i].slot` of it is `rows[i]`."""


class FaultyExecutor(LocalExecutor):
    """The real executor; `fault` may damage what it loaded. A damaged row stays so until its slot is given up."""

    fault: Fault | None = None

    def load(self, step: PreparedStep, digests: DigestJob) -> LoadedStep:
        loaded = super().load(step, digests)
        if self.fault is not None:
            self.fault(loaded.batch, step.rows)
        return loaded


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rig:
    """One engine and what came out of it."""

    engine: Engine
    scheduler: Scheduler
    executor: FaultyExecutor
    cache: KvCache
    pool: PagePool
    model: ProvenanceModel
    clock: Clock
    answers: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """By request and index."""
    finishes: dict[tuple[str, int], FinishReason] = field(default_factory=dict)
    failed: dict[str, RequestFailed] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    @property
    def kv(self) -> KvManager:
        return self.scheduler.kv

    @property
    def tokens(self) -> dict[str, list[int]]:
        """The first answers, by request."""
        return {request: tokens for (request, index), tokens in self.answers.items() if index == 0}

    @property
    def finished(self) -> dict[str, FinishReason]:
        """How the first answers ended, by request."""
        return {request: finish for (request, index), finish in self.finishes.items() if index == 0}

    def submit(
        self,
        request: str,
        prompt: Sequence[int],
        max_tokens: int,
        stop_tokens: Sequence[int] = (),
        *,
        n: int = 1,
        priority: int = 0,
        salt: str = "",
        sampling: Sampling = GREEDY,
    ) -> None:
        self.engine.submit(Submit(request, list(prompt), max_tokens, sampling, list(stop_tokens), n, priority, salt))

    def step(self) -> StepResult:
        result = self.engine.step()
        for token in result.tokens:
            self.answers[token.request, token.index].append(token.token)
            if token.finish is not None:
                self.finishes[token.request, token.index] = token.finish
        self.failed |= {failure.request: failure for failure in result.failures}
        self.violations += result.violations
        self.kv.check_integrity(self.scheduler.holdings())
        return result

    def run(self) -> None:
        """Until nothing is left to do."""
        for _ in range(STEPS_LIMIT):
            if self.engine.idle:
                return
            self.step()
        raise AssertionError(f"not idle after {STEPS_LIMIT} steps")


def rig_of(
    *,
    pages: int = 64,
    page_size: int = 4,
    seqs: int = 4,
    tokens_per_step: int = 16,
    mode: IntegrityMode = IntegrityMode.ENFORCE,
    kv: KvFormat = KvFormat.BF16,
    operations: Operations = OPERATIONS,
    prefix_cache: bool = True,
    pad_decode_to: Sequence[int] = (),
    digest_pages: int = 1,
) -> Rig:
    cache = cache_of(pages + 1, page_size, kv)
    pool = PagePool(cache.num_pages, page_size)
    prefix = PrefixCache(PrefixEpoch(FACTS.revision, kv, page_size)) if prefix_cache else None
    scheduler = Scheduler(SchedulerLimits(seqs, tokens_per_step), KvManager(pool, Nonces(seed=5), prefix))
    builder = BatchBuilder(seqs, pad_decode_to)
    digests = PageDigests(digest_pages, cache.num_layers, page_size)
    model = ProvenanceModel()
    buffers = StepBuffers(builder.max_rows, max(tokens_per_step, builder.max_rows), digest_pages, CPU)
    executor = FaultyExecutor(model, cache, operations, buffers, checks=mode is not IntegrityMode.OFF)
    clock = Clock()
    engine = Engine(
        scheduler,
        builder,
        executor,
        mode,
        digests,
        clock=clock,
        wall_clock=lambda: START_OF_TIME + clock.now,
    )
    return Rig(engine, scheduler, executor, cache, pool, model, clock)
