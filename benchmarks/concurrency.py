"""Throughput of FP8 KV against BF16 KV in the same bytes, and what the parts of a step say that it should be.

The same model in one process, over the same weights. Both pools have the same bytes: BF16 runs 32 requests and
has no room for a 33rd, FP8 runs 64. Their decode steps take turns. A step is divided into

    weights  bytes of weights that it reads, at the rate at which these kernels read them when every expert has one row
             (measured here): then they have the least else to do
    KV       bytes of keys and values that it reads, at the rate at which this machine reads memory (measured here)
    compute  what products, attention and the rest of forward pass, check and sampling took beyond that
    host     everything else: schedule, batch, bookkeeping

From 32 requests in BF16 to 64 in FP8 the KV bytes stay the same, and weights grow by the experts that more requests
touch. What compute and host grow by is seen in BF16 itself, by a third engine that runs 16 requests: twice what they
grow by from 16 to 32. So much for the predicted gain; the measured one is tokens per second over tokens per second. A
run whose host share is above 10 % tells nothing of kernels: it is invalid.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import torch

from benchmarks import capacity
from benchmarks.intervals import ratio_of_medians_95
from benchmarks.kernels_arms import Arm, take_turns
from benchmarks.kernels_stream import read_arm
from benchmarks.synthetic_engine import decode_only, end_all, engine_over, submit
from benchmarks.synthetic_model import Slice, Timers, build_model, distinct_weight_bytes, last_level_cache_bytes
from octavo_kernels.catalogue import Operations
from octavo_kernels.formats.experts import CanonicalExperts
from octavo_kernels.operations import ExpertKernel, PreparedWeights
from octavo_runtime.contract.footprint import bytes_for_tokens, kv_bytes_per_token, pages_in
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, WeightFormat
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.models.qwen3_moe import Qwen3Moe

HALF_REQUESTS, BF16_REQUESTS, FP8_REQUESTS = 16, 32, 64
PAGE_SIZE = 64
PAGES_PER_REQUEST = 16
CONTEXT = PAGES_PER_REQUEST * PAGE_SIZE
PROMPT = CONTEXT - PAGE_SIZE + 1
"""Tokens of a prompt: it takes all pages that its request will ever need, so that who was let in is never preempted."""
STEPS, QUICK_STEPS = 40, 6
"""Decode steps of each engine in one round; the prompts take up to eight more, and 63 fit the last page."""
ROUNDS, QUICK_ROUNDS = 3, 1
MOST_HOST_SHARE = 0.10
RATE_ROUNDS = 10
RUNNING = {KvFormat.BF16: BF16_REQUESTS, KvFormat.FP8: FP8_REQUESTS}


class _WatchedExperts(ExpertKernel[PreparedWeights]):
    """Remembers which experts were asked for."""

    def __init__(self, kernel: ExpertKernel[PreparedWeights]) -> None:
        self._kernel = kernel
        self.asked: list[tuple[torch.Tensor, int]] = []
        """Ids [T, k] and bytes of one expert, layer by layer."""

    def prepare(self, canonical: CanonicalExperts) -> PreparedWeights:
        """As the kernel does."""
        return self._kernel.prepare(canonical)

    def apply(
        self, x: torch.Tensor, prepared: PreparedWeights, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """As the kernel does."""
        self.asked.append((ids, prepared.nbytes))
        return self._kernel.apply(x, prepared, ids, weights)

    def take_bytes(self, experts: int) -> float:
        """Bytes of the experts asked for since the last call, each counted once per layer."""
        asked, self.asked = self.asked, []
        return sum(len(torch.unique(ids)) * nbytes / experts for ids, nbytes in asked)


@dataclass(frozen=True)
class Step:
    """Seconds of one decode step, and bytes of experts that it read."""

    total: float
    forward: float
    attention: float
    experts_bytes: float

    @property
    def host(self) -> float:
        """Seconds outside of forward pass, check and sampling."""
        return self.total - self.forward


@dataclass
class _Side:
    """One of the engines."""

    kv: KvFormat
    running: int
    requests: int
    engine: Engine
    timers: Timers
    experts: _WatchedExperts
    steps: list[Step]

    @classmethod
    def over(cls, shape: Slice, model: Qwen3Moe, kv: KvFormat, num_pages: int, running: int, requests: int) -> _Side:
        timers = Timers()
        watched: list[_WatchedExperts] = []

        def instrument(operations: Operations) -> Operations:
            watched.append(_WatchedExperts(operations.experts))
            return replace(
                operations,
                experts=watched[0],
                paged_attention=timers.around("attention", operations.paged_attention),
                kv_write=timers.around("attention", operations.kv_write),
                check_rows=timers.around("forward", operations.check_rows),
                conclude=timers.around("forward", operations.conclude),
                sample=timers.around("forward", operations.sample),
            )

        engine = engine_over(
            shape,
            model,
            kv=kv,
            mode=IntegrityMode.ENFORCE,
            num_pages=num_pages,
            page_size=PAGE_SIZE,
            max_num_seqs=FP8_REQUESTS,
            instrument=instrument,
            timers=timers,
        )
        return cls(kv, running, requests, engine, timers, watched[0], [])

    def begin(self, shape: Slice) -> None:
        """Submit all requests and run until no prompt is left that there is room for."""
        submit(self.engine, "r", self.requests, PROMPT, CONTEXT - PROMPT, shape.vocabulary, stagger=1)
        decode_only(self.engine, self.running)
        self.experts.take_bytes(1)
        self.timers.take()
        stats = self.engine.stats()
        if (stats.running, stats.waiting) != (self.running, self.requests - self.running):
            raise RuntimeError(f"{self.kv}: {stats.running} run and {stats.waiting} wait, not {self.running}")

    def step(self, shape: Slice) -> None:
        """One decode step."""
        start = time.perf_counter()
        result = self.engine.step()
        total = time.perf_counter() - start
        if len(result.tokens) != self.running or result.violations:
            raise RuntimeError(f"{self.kv}: a step gave {len(result.tokens)} tokens and {result.violations}")
        seconds = self.timers.take()
        self.steps.append(Step(total, seconds["forward"], seconds["attention"], self.experts.take_bytes(shape.experts)))

    def end(self) -> None:
        """Cancel everybody."""
        end_all(self.engine, "r", self.requests)


@dataclass(frozen=True)
class Split:
    """Where the time of a step goes, in seconds."""

    weights: float
    kv: float
    compute: float
    host: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.weights + self.kv + self.compute + self.host


@dataclass(frozen=True)
class Rates:
    """Bytes per second."""

    weights: float
    memory: float

    def split(self, steps: list[Step], dense_bytes: float, kv_bytes: float) -> Split:
        """Of the median step that reads `dense_bytes` of weights besides its experts."""
        total, host = statistics.median(s.total for s in steps), statistics.median(s.host for s in steps)
        weights = (dense_bytes + statistics.mean(s.experts_bytes for s in steps)) / self.weights
        kv = kv_bytes / self.memory
        return Split(weights, kv, total - host - weights - kv, host)


def predicted_gain(half: Split, bf16: Split, weights_growth: float) -> float:
    """Tokens per second of 64 requests in the same KV bytes over those of 32 (`bf16`), with what 16 (`half`) took."""
    growth = FP8_REQUESTS / BF16_REQUESTS
    others, others_of_half = bf16.compute + bf16.host, half.compute + half.host
    then = bf16.weights * weights_growth + bf16.kv + others + growth * max(0.0, others - others_of_half)
    return growth * bf16.total / then


def measure(shape: Slice, *, rounds: int, steps: int) -> dict[str, object]:
    """Both arms over one model."""
    model = build_model(shape, shape.operations(KvFormat.BF16, PAGE_SIZE), CONTEXT)
    layout = ParallelLayout.of(model.facts, 1)
    budget = max(bytes_for_tokens(RUNNING[kv] * CONTEXT, model.facts, kv, layout, PAGE_SIZE) for kv in KvFormat)
    pages = {kv: pages_in(budget, model.facts, kv, layout, PAGE_SIZE) for kv in KvFormat}
    sides = {kv: _Side.over(shape, model, kv, pages[kv], RUNNING[kv], FP8_REQUESTS) for kv in KvFormat}
    half_side = _Side.over(shape, model, KvFormat.BF16, pages[KvFormat.BF16], HALF_REQUESTS, HALF_REQUESTS)
    everybody = [*sides.values(), half_side]
    for _ in range(rounds):
        for side in everybody:
            side.begin(shape)
        for turn in range(steps):
            for side in everybody if turn % 2 else reversed(everybody):
                side.step(shape)
        for side in everybody:
            side.end()
    preemptions = sum(side.engine.stats().preemptions for side in sides.values())
    rates = Rates(_weight_rate(shape, model), _read_rate())
    # The embedding is looked up, not read.
    dense = model.weight_bytes - model.embedding.nbytes - sum(layer.experts.experts.nbytes for layer in model.layers)

    def kv_bytes(kv: KvFormat, running: int) -> float:
        return running * (PROMPT + steps / 2) * kv_bytes_per_token(model.facts, kv, layout)

    splits = {kv: rates.split(side.steps, dense, kv_bytes(kv, RUNNING[kv])) for kv, side in sides.items()}
    half = rates.split(half_side.steps, dense, kv_bytes(KvFormat.BF16, HALF_REQUESTS))
    growth = splits[KvFormat.FP8].weights / splits[KvFormat.BF16].weights
    totals = {kv: [s.total for s in side.steps] for kv, side in sides.items()}
    gain = statistics.median(totals[KvFormat.BF16]) / statistics.median(totals[KvFormat.FP8])
    low, high = ratio_of_medians_95(totals[KvFormat.BF16], totals[KvFormat.FP8])
    scale = FP8_REQUESTS / BF16_REQUESTS
    figures: dict[str, object] = {
        "model": shape.describe(),
        "weight_bytes": distinct_weight_bytes(model),
        "last_level_cache_bytes": last_level_cache_bytes(),
        "kv_bytes": budget,
        "context_tokens": CONTEXT,
        "threads": torch.get_num_threads(),
        "steps": len(totals[KvFormat.BF16]),
        "preemptions": preemptions,
        "throughput_gain_fp8": round(scale * gain, 3),
        "throughput_gain_fp8_95": [round(scale * low, 3), round(scale * high, 3)],
        "predicted_gain": round(predicted_gain(half, splits[KvFormat.BF16], growth), 3),
        "host_share": round(max(split.host / split.total for split in splits.values()), 4),
        "weights_gigabytes_per_second": round(rates.weights / 1e9, 2),
        "read_gigabytes_per_second": round(rates.memory / 1e9, 2),
        "weight_bytes_growth": round(growth, 3),
        "step_ms_bf16_16_requests": round(half.total * 1e3, 2),
    }
    for kv, split in splits.items():
        name = kv.lower()
        figures |= {
            f"step_ms_{name}": round(split.total * 1e3, 2),
            f"weights_ms_{name}": round(split.weights * 1e3, 2),
            f"kv_ms_{name}": round(split.kv * 1e3, 2),
            f"compute_ms_{name}": round(split.compute * 1e3, 2),
            f"host_ms_{name}": round(split.host * 1e3, 2),
            f"attention_ms_{name}": round(statistics.median(s.attention for s in sides[kv].steps) * 1e3, 2),
            f"tokens_per_second_{name}": round(RUNNING[kv] / split.total, 1),
            f"tokens_per_second_per_request_{name}": round(1 / split.total, 2),
        }
    return figures


def run(*, quick: bool) -> dict[str, object]:
    """BF16 experts, where reading binds, and INT4 ones, where products do; quick only the latter."""
    steps, rounds = (QUICK_STEPS, QUICK_ROUNDS) if quick else (STEPS, ROUNDS)
    int4 = measure(Slice(2, WeightFormat.INT4), rounds=rounds, steps=steps)
    if quick:
        figures = int4
    else:
        bf16 = measure(Slice(2, WeightFormat.BF16), rounds=rounds, steps=steps)
        figures = bf16 | {f"{name}_int4_experts": value for name, value in int4.items()}
    ratios = capacity.run(quick=True)
    figures |= {name: ratios[name] for name in ("capacity_ratio_gqa", "capacity_ratio_mla") if name in ratios}
    host = figures["host_share"]
    assert isinstance(host, float)
    if host > MOST_HOST_SHARE:
        figures["failed"] = [f"host time is {host:.1%} of a step, at most {MOST_HOST_SHARE:.0%} is valid"]
    return figures


def sheet(figures: dict[str, object]) -> str:
    """The figures for people."""
    lines: list[str] = []
    for suffix in ("", "_int4_experts"):
        if f"model{suffix}" not in figures:
            continue
        lines += [
            *(str(figures[f"model{suffix}"]), f"{figures[f'weight_bytes{suffix}']:,} bytes of weights in memory"),
            f"KV pool of {figures[f'kv_bytes{suffix}']:,} bytes, contexts up to {CONTEXT} tokens, "
            f"{figures[f'threads{suffix}']} threads, {figures[f'steps{suffix}']} steps of each in turns",
            f"reading: weights {figures[f'weights_gigabytes_per_second{suffix}']} GB/s, "
            f"memory {figures[f'read_gigabytes_per_second{suffix}']} GB/s",
            "",
            f"{'ms of a step':16}{'all':>9}{'weights':>9}{'KV':>9}{'compute':>9}{'host':>9}{'tokens/s':>10}{'each':>8}",
        ]
        for kv in KvFormat:
            name = kv.lower()
            parts = "".join(
                f"{figures[f'{part}_ms_{name}{suffix}']:>9}" for part in ("step", "weights", "kv", "compute", "host")
            )
            all_of_them = figures[f"tokens_per_second_{name}{suffix}"]
            each = figures[f"tokens_per_second_per_request_{name}{suffix}"]
            lines.append(f"{f'{kv}, {RUNNING[kv]} run':16}{parts}{all_of_them:>10}{each:>8}")
        lines += [
            "",
            f"gain {figures[f'throughput_gain_fp8{suffix}']} (95 %: {figures[f'throughput_gain_fp8_95{suffix}']}), "
            f"predicted {figures[f'predicted_gain{suffix}']}",
            "",
        ]
    ratios = [f"{name} {figures[name]}" for name in figures if name.startswith("capacity_ratio")]
    return "\n".join([*lines, *ratios])


def _weight_rate(shape: Slice, model: Qwen3Moe) -> float:
    """Bytes per second of the expert kernel at best, when each expert has one row."""
    experts = model.operations.experts
    ids = torch.arange(shape.experts).view(-1, shape.top_k)
    x, weights = torch.randn(ids.shape[0], shape.hidden), torch.full(ids.shape, 1 / shape.top_k)
    packed = [layer.experts.experts for layer in model.layers]
    arm = Arm(lambda turn: experts.apply(x, packed[turn % len(packed)], ids, weights), packed[0].nbytes)
    return take_turns({"experts": arm}, RATE_ROUNDS)["experts"].best_rate


def _read_rate() -> float:
    """Bytes per second that this machine reads at best."""
    return take_turns({"read": read_arm()}, RATE_ROUNDS)["read"].best_rate
