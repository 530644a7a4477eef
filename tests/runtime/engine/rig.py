"""An engine over the provenance model, and a place to plant faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_kernels.catalogue import Operations
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.executor import Executor
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.messages import FinishReason, RequestFailed, Sampling, Submit, Violation
from octavo_runtime.engine.result import StepResult
from octavo_runtime.engine.scheduler import ScheduledRow, Scheduler, SchedulerLimits
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.pool import Nonces, PagePool
from tests.runtime.engine.provenance import CPU, OPERATIONS, ProvenanceModel, cache_of

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
STEPS_LIMIT = 10_000

Fault = Callable[[Batch, Sequence[ScheduledRow]], None]
"""Changes a batch after the allocator built it, as a wrong kernel or a race would."""


class FaultyBuilder(BatchBuilder):
    """The real builder; `fault` may damage what it built."""

    fault: Fault | None = None

    def build(self, step: int, rows: Sequence[ScheduledRow]) -> Batch:
        batch = super().build(step, rows)
        if self.fault is not None:
            self.fault(batch, rows)
        return batch


@dataclass
class Rig:
    """One engine and what came out of it."""

    engine: Engine
    scheduler: Scheduler
    builder: FaultyBuilder
    cache: KvCache
    model: ProvenanceModel
    tokens: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[str, FinishReason] = field(default_factory=dict)
    failed: dict[str, RequestFailed] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def submit(self, request: str, prompt: Sequence[int], max_tokens: int, stop_tokens: Sequence[int] = ()) -> None:
        self.engine.submit(Submit(request, list(prompt), max_tokens, GREEDY, list(stop_tokens)))

    def step(self) -> StepResult:
        result = self.engine.step()
        for token in result.tokens:
            self.tokens[token.request].append(token.token)
            if token.finish is not None:
                self.finished[token.request] = token.finish
        self.failed |= {failure.request: failure for failure in result.failures}
        self.violations += result.violations
        self.scheduler.pool.check_integrity(self.scheduler.holdings())
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
) -> Rig:
    cache = cache_of(pages + 1, page_size, kv)
    pool = PagePool(cache.num_pages, page_size)
    scheduler = Scheduler(SchedulerLimits(seqs, tokens_per_step), pool, Nonces(seed=5))
    builder = FaultyBuilder(seqs, pages, CPU)
    model = ProvenanceModel()
    executor = Executor(1, model, cache, operations, checks=mode is not IntegrityMode.OFF)
    return Rig(Engine(scheduler, builder, executor, mode), scheduler, builder, cache, model)
