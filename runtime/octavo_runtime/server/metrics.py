"""Metrics of the HTTP process, in a registry of its own; the engine's counters arrive with its heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_kernels.formats.verdict import Finding, reasons_of, word_of
from octavo_runtime.contract import metrics as names
from octavo_runtime.contract.integrity import IntegrityMode
from octavo_runtime.engine.messages import EngineStats, FinishReason, Started, Violation

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
BETWEEN_TOKENS_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


@dataclass(frozen=True)
class EngineView:
    """What the collector asks the engine client for at scrape time."""

    stats: Callable[[], EngineStats | None]
    started: Callable[[], Started | None]
    silent_seconds: Callable[[], float]
    last_violation: Callable[[], Violation | None]


class ServerMetrics:
    """All metrics of one server."""

    def __init__(
        self, served_model: str, batch_slots: int, engine: EngineView, integrity: IntegrityMode = IntegrityMode.ENFORCE
    ) -> None:
        self.registry = CollectorRegistry()
        self.prompt_tokens = self._counter(names.PROMPT_TOKENS, "Prompt tokens of admitted requests.")
        self.generation_tokens = self._counter(names.GENERATION_TOKENS, "Tokens generated.")
        self.finished = self._counter(names.REQUESTS_FINISHED, "Answers ended, by reason.", "reason")
        self.rejections = self._counter(names.ADMISSION_REJECTIONS, "Requests not taken in, by reason.", "reason")
        self.first_token_seconds = Histogram(
            names.TIME_TO_FIRST_TOKEN_SECONDS,
            "From the request's arrival to its first token.",
            registry=self.registry,
            buckets=FIRST_TOKEN_BUCKETS,
        )
        self.inter_token_seconds = Histogram(
            names.INTER_TOKEN_LATENCY_SECONDS,
            "Between two tokens of one answer.",
            registry=self.registry,
            buckets=BETWEEN_TOKENS_BUCKETS,
        )
        slots = Gauge(names.BATCH_SLOTS, "Requests that run at once at most.", registry=self.registry)
        slots.set(batch_slots)
        for reason in FinishReason:
            self.finished.labels(reason=reason.value)
        self.registry.register(_EngineCollector(served_model, engine, integrity))

    def exposition(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)


class _EngineCollector(Collector):
    """Turns the engine's last words into metrics; families without a value yet are left out."""

    def __init__(self, served_model: str, engine: EngineView, integrity: IntegrityMode) -> None:
        self._model = served_model
        self._engine = engine
        self._integrity = integrity

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        started, stats = self._engine.started(), self._engine.stats()
        yield GaugeMetricFamily(
            names.ENGINE_SILENT_SECONDS, "Since the engine's last sign of life.", self._engine.silent_seconds()
        )
        if started is not None:
            yield from self._startup(started)
        if stats is not None:
            yield from self._gauges(stats)
            yield from self._counters(stats)
            yield _violations(stats)
        last = self._engine.last_violation()
        if last is not None:
            yield GaugeMetricFamily(names.INTEGRITY_LAST_VIOLATION, "Unix time of the last violation.", last.time)
        if started is not None and stats is not None:
            usage = stats.kv_tokens_used / started.kv_tokens
            yield self._aliased(names.VLLM_KV_USAGE, "Share of KV tokens in use, 0 to 1.", usage)

    def _startup(self, started: Started) -> Iterable[Metric]:
        yield GaugeMetricFamily(names.KV_TOKENS_CAPACITY, "Tokens that the KV pool holds.", float(started.kv_tokens))
        kernels = GaugeMetricFamily(
            names.KERNEL_INFO, "Which implementation runs an operation.", labels=("op", "implementation")
        )
        for kernel in started.kernels:
            kernels.add_metric((kernel.operation, kernel.implementation), 1)
        yield kernels
        planned = GaugeMetricFamily(names.MEMORY_PLANNED_BYTES, "Bytes by the contract's arithmetic.", labels=("part",))
        measured = GaugeMetricFamily(names.MEMORY_MEASURED_BYTES, "Bytes found after loading.", labels=("part",))
        for line in started.memory:
            planned.add_metric((line.part,), line.planned_bytes)
            measured.add_metric((line.part,), line.measured_bytes)
        yield planned
        yield measured
        config = GaugeMetricFamily(
            names.VLLM_CACHE_CONFIG, "The KV pool's shape.", labels=("model_name", "block_size", "num_gpu_blocks")
        )
        config.add_metric((self._model, str(started.page_size), str(started.kv_pages - 1)), 1)
        yield config
        info = GaugeMetricFamily(names.INTEGRITY_INFO, "How KV pages are checked.", labels=("mode", "page_size"))
        info.add_metric((self._integrity.value, str(started.page_size)), 1)
        yield info

    def _gauges(self, stats: EngineStats) -> Iterable[Metric]:
        for name, text, value in (
            (names.REQUESTS_RUNNING, "Requests in the batch.", stats.running),
            (names.REQUESTS_WAITING, "Requests that wait for a place in the batch.", stats.waiting),
            (names.WAITING_TOKENS, "Known tokens of waiting requests.", stats.waiting_tokens),
            (names.KV_TOKENS_USED, "Tokens in pages that requests reference.", stats.kv_tokens_used),
            (names.KV_TOKENS_RETAINED, "Tokens that only the prefix cache keeps.", stats.kv_tokens_retained),
            (names.KV_PAGES_FREE, "Pages that can be allocated.", stats.kv_pages_free),
            (names.KV_PAGES_SET_ASIDE, "Pages never used again after a violation.", stats.kv_pages_set_aside),
            (names.INTEGRITY_STALLED, "1 while the integrity check does not speak.", stats.integrity_stalled),
        ):
            yield GaugeMetricFamily(name, text, float(value))
            if name in names.VLLM_ALIASES:
                yield self._aliased(names.VLLM_ALIASES[name], text, float(value))

    def _counters(self, stats: EngineStats) -> Iterable[Metric]:
        for name, text, value in (
            (names.ENGINE_STEPS, "Steps of the engine.", stats.steps),
            (names.PREEMPTIONS, "Requests that lost their pages to an older one and start again.", stats.preemptions),
            (names.FORKS, "Answers that share the prompt's pages of another one.", stats.forks),
            (names.PAGES_COPIED, "Pages copied for a fork.", stats.pages_copied),
            (names.PREFIX_QUERIED_TOKENS, "Prompt tokens looked up in the prefix cache.", stats.prefix_queried_tokens),
            (names.PREFIX_HIT_TOKENS, "Prompt tokens found in the prefix cache.", stats.prefix_hit_tokens),
            (names.INTEGRITY_CHECKS, "Rows checked, one per row and step.", stats.integrity_checks),
            (names.INTEGRITY_CANCELLED, "Requests ended by a violation.", stats.integrity_cancelled),
            (names.INTEGRITY_RECOMPUTED, "Requests recomputed after a violation.", stats.recomputed),
            (names.INTEGRITY_DIGESTS, "Page digests compared.", stats.digests_checked),
            (names.INTEGRITY_AUDITS, "Full audits of the page pool.", stats.audits),
        ):
            yield CounterMetricFamily(name, text, float(value))
            if name in names.VLLM_ALIASES:
                yield self._aliased(names.VLLM_ALIASES[name], text, float(value), CounterMetricFamily)

    def _aliased(
        self,
        name: str,
        text: str,
        value: float,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily,
    ) -> Metric:
        family = kind(name, text, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family


def _violations(stats: EngineStats) -> Metric:
    counts = dict.fromkeys(VIOLATION_REASONS, 0) | stats.integrity_violations
    family = CounterMetricFamily(names.INTEGRITY_VIOLATIONS, "Findings of the KV integrity check.", labels=("reason",))
    for reason, count in counts.items():
        family.add_metric((reason,), count)
    return family


VIOLATION_REASONS = (*reasons_of(word_of(Finding(sum(Finding))), step=1), *reasons_of(0, step=1))
"""Every reason of a verdict has a series from the start: a first violation is an increase and not a new series."""
