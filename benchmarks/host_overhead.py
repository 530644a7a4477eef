"""What the host does for one step of 64 decoding requests with long contexts, without a model; on one core.

Scheduler, KV manager, batch builder and step buffers are the real ones. Only the model is missing: the executor brings
the step to its buffers and answers at once, with a token and a clean verdict for every row. Engines with contexts of
21,400 and 42,800 tokens take turns. The figure is schedule and batch preparation (pages, block table, all inputs in
their buffers); what the engine does with the answer afterwards is told apart. Times of the clock are what a user waits
for; CPU times say the same on a machine that others use as well.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass, field

import torch

from benchmarks.intervals import median_95
from benchmarks.synthetic_engine import decode_only, submit
from benchmarks.synthetic_model import CPU, Timers
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.buffers import StepBuffers
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob, Outcome
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.schedule import SchedulerLimits
from octavo_runtime.engine.scheduler import Scheduler
from octavo_runtime.kv.holding import Nonces
from octavo_runtime.kv.manager import KvManager
from octavo_runtime.kv.pool import PagePool
from octavo_runtime.kv.prefix import PrefixCache, PrefixEpoch
from octavo_runtime.kv.updates import DeviceUpdates

REQUESTS, PAGE_SIZE = 64, 64
CONTEXTS = {"21k": 21_400, "43k": 42_800}
STEPS, QUICK_STEPS = 1000, 100
TOKENS_PER_STEP = 1 << 16
LAYERS = 48
"""Page digests draw from as many layers."""
VOCABULARY = 32_000
ROOM_PAGES = 20
"""Per request, for its answer."""


class _NoModel:
    """Implements `engine.executor.Executor`: every row gets token 1 and a clean verdict."""

    def __init__(self, buffers: StepBuffers) -> None:
        self._buffers = buffers
        self.checks = 0

    def execute(self, step: PreparedStep, updates: DeviceUpdates, digests: DigestJob = NO_DIGESTS) -> Outcome:
        """See `Executor`."""
        self.load(step, digests)
        self.checks += 1
        rows = step.host.num_rows
        return Outcome([1] * rows, [step.host.step] * rows, digests=[0] * len(digests))

    def load(self, step: PreparedStep, digests: DigestJob) -> None:
        """Bring the step to its buffers."""
        self._buffers.load(step.host, digests.pages, PAGE_SIZE)

    def self_check(self, step: int) -> int:
        """See `Executor`."""
        self.checks += 1
        return step


@dataclass
class _Side:
    """One engine and the times of its steps, in seconds."""

    engine: Engine
    timers: Timers
    cpu_timers: Timers
    prepared: list[float] = field(default_factory=list)
    prepared_cpu: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, context: int, steps: int) -> _Side:
        timers, cpu_timers = Timers(), Timers(time.thread_time)
        pages = REQUESTS * (-(-context // PAGE_SIZE) + ROOM_PAGES) + 1
        prefix = PrefixCache(PrefixEpoch("none", KvFormat.FP8, PAGE_SIZE))
        kv = KvManager(PagePool(pages, PAGE_SIZE), Nonces(1), prefix)
        scheduler = Scheduler(SchedulerLimits(REQUESTS, TOKENS_PER_STEP), kv)
        builder = BatchBuilder(REQUESTS)
        executor = _NoModel(StepBuffers(REQUESTS, TOKENS_PER_STEP, 1, CPU))
        engine = Engine(scheduler, builder, executor, IntegrityMode.ENFORCE, PageDigests(1, LAYERS, PAGE_SIZE))
        for part, name in ((scheduler, "schedule"), (builder, "build"), (kv, "take_updates"), (executor, "load")):
            setattr(part, name, timers.around("prepare", cpu_timers.around("prepare", getattr(part, name))))
        submit(engine, "r", REQUESTS, context, 2 * steps + REQUESTS, VOCABULARY, stagger=PAGE_SIZE)
        decode_only(engine, REQUESTS)
        timers.take()
        cpu_timers.take()
        return cls(engine, timers, cpu_timers)

    def step(self) -> None:
        start = time.perf_counter()
        result = self.engine.step()
        self.whole.append(time.perf_counter() - start)
        self.prepared.append(self.timers.take()["prepare"])
        self.prepared_cpu.append(self.cpu_timers.take()["prepare"])
        if len(result.tokens) != REQUESTS or result.violations:
            raise RuntimeError(f"a step gave {len(result.tokens)} tokens and {result.violations}")


def run(*, quick: bool) -> dict[str, object]:
    """Milliseconds per step by context."""
    steps = QUICK_STEPS if quick else STEPS
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sides = {name: _Side.of(context, steps) for name, context in CONTEXTS.items()}
        gc.collect()
        for turn in range(steps):
            for name in sides if turn % 2 else reversed(sides):
                sides[name].step()
    finally:
        torch.set_num_threads(threads)
    figures: dict[str, object] = {"requests": REQUESTS, "page_size": PAGE_SIZE, "steps": steps}
    for name, side in sides.items():
        figures |= {
            f"step_ms_64x{name}": _milliseconds(statistics.median(side.prepared)),
            f"step_ms_64x{name}_95": [_milliseconds(bound) for bound in median_95(side.prepared)],
            f"step_ms_64x{name}_p99": _milliseconds(statistics.quantiles(side.prepared, n=100)[-1]),
            f"step_cpu_ms_64x{name}": _milliseconds(statistics.median(side.prepared_cpu)),
            f"whole_step_ms_64x{name}": _milliseconds(statistics.median(side.whole)),
        }
    short, long = sides.values()
    return figures | {
        "growth_when_contexts_double": _growth(short.prepared, long.prepared),
        "cpu_growth_when_contexts_double": _growth(short.prepared_cpu, long.prepared_cpu),
    }


def sheet(figures: dict[str, object]) -> str:
    """The figures for people."""
    lines = [
        f"Host work per step, {REQUESTS} decoding requests, pages of {PAGE_SIZE} tokens, {figures['steps']} steps, ms:",
        "",
        f"{'context':>10}{'schedule + batch':>18}{'95 % interval':>20}{'99th percentile':>17}{'CPU time':>10}"
        f"{'all of step()':>15}",
    ]
    for name, context in CONTEXTS.items():
        interval = figures[f"step_ms_64x{name}_95"]
        assert isinstance(interval, list)
        lines.append(
            f"{context:>10,}{figures[f'step_ms_64x{name}']:>18}{' to '.join(str(bound) for bound in interval):>20}"
            f"{figures[f'step_ms_64x{name}_p99']:>17}{figures[f'step_cpu_ms_64x{name}']:>10}"
            f"{figures[f'whole_step_ms_64x{name}']:>15}"
        )
    lines.append(
        f"\ncontexts twice as long take {figures['growth_when_contexts_double']} times as long, "
        f"{figures['cpu_growth_when_contexts_double']} times the CPU time"
    )
    return "\n".join(lines)


def _growth(short: list[float], long: list[float]) -> float:
    return round(statistics.median(long) / statistics.median(short), 3)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
