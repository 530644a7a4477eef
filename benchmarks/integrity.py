"""What the KV integrity check costs (L0 to L4, Enforce against Off), and what it finds.

Cost. Two engines over one model and the same weights, in one process: one checks, the other does not. They get the same
requests, and their decode steps take turns (ABBA), so that a busy moment of the machine meets both. Two answers:

    paired   how much longer the checking engine's steps are, pair by pair: whatever the check costs is in it, and all
             noise of the machine as well
    direct   CPU seconds of the engine's thread inside the check's own functions, over the time of a step without them:
             hardly any noise, but blind to what the check does to the rest of the step (caches)

The plain figure is the paired one where its 95 % interval is narrower than one point; otherwise it is the direct one,
and `overhead_basis` says so. Storing with the write check is one operation, which both engines run: the time of all of
it (`kv_write_percent`) bounds what that check costs.

Findings. Campaigns of planted faults and of clean traffic with the tests' engine (tests/runtime/engine/campaign.py).
"""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import cycle
from multiprocessing import get_context

import numpy as np
import torch

from benchmarks.intervals import bootstrap_95, median_95
from benchmarks.synthetic_engine import decode_only, end_all, engine_over, submit
from benchmarks.synthetic_model import Slice, Timers, build_model, distinct_weight_bytes, last_level_cache_bytes
from octavo_kernels.catalogue import Operations
from octavo_runtime.contract.footprint import PAGE_METADATA_BYTES
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.fault_kinds import FaultKind
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.models.qwen3_moe import Qwen3Moe

PAGE_SIZE = 64
RUNNING = (1, 32, 64)
PROMPT = 1024
LAYERS, QUICK_LAYERS = 4, 2
SECONDS, QUICK_SECONDS = {1: 30.0, 32: 60.0, 64: 75.0}, {1: 4.0, 32: 8.0, 64: 10.0}
"""For the steps of both arms, by running requests."""
STEPS_LIMIT = 1000
"""Decode steps of one engine for one figure at most."""
WARM_STEPS = 3
ANSWER = STEPS_LIMIT + 2 * PAGE_SIZE
"""Tokens of an answer: the steps, and those beside the others' prompts."""
PAGES_EACH = -(-(PROMPT + ANSWER) // PAGE_SIZE)
NARROW_POINTS = 1.0
CACHES = 8
FAULTS, QUICK_FAULTS = 200, 10
CLEAN_STEPS, QUICK_CLEAN_STEPS = 1_000_000, 20_000
CAMPAIGN_SEED = 5
PARTS = {
    "host": (("", "_check_host"),),
    "table": (("_executor", "_check"), ("_executor", "_conclude")),
    "verdicts": (("", "_judge"), ("_watchdog", "saw_step")),
    "digests": (("_digests", "job"), ("_executor", "_digest")),
}
"""Names of the check's functions, by part: attribute of the engine (itself where empty) and method."""


@dataclass
class _Arm:
    """One of the two engines."""

    engine: Engine
    timers: Timers
    seconds: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def over(cls, shape: Slice, model: Qwen3Moe, mode: IntegrityMode) -> _Arm:
        timers = Timers(time.thread_time)

        def instrument(operations: Operations) -> Operations:
            return replace(operations, kv_write=timers.around("kv_write", operations.kv_write))

        engine = engine_over(
            shape,
            model,
            kv=KvFormat.FP8,
            mode=mode,
            num_pages=max(RUNNING) * PAGES_EACH + 1,
            page_size=PAGE_SIZE,
            max_num_seqs=max(RUNNING),
            instrument=instrument,
        )
        for part, functions in PARTS.items() if mode is not IntegrityMode.OFF else ():
            for owner, name in functions:
                target = getattr(engine, owner) if owner else engine
                setattr(target, name, timers.around(part, getattr(target, name)))
        return cls(engine, timers)

    def begin(self, running: int, vocabulary: int) -> None:
        submit(self.engine, f"{running}", running, PROMPT, ANSWER, vocabulary, stagger=PAGE_SIZE)
        decode_only(self.engine, running)
        for _ in range(WARM_STEPS):
            self.engine.step()
        self.timers.take()
        self.seconds.clear()
        self.parts.clear()

    def step(self, running: int) -> None:
        start = time.perf_counter()
        result = self.engine.step()
        self.seconds.append(time.perf_counter() - start)
        self.parts.append(self.timers.take())
        if len(result.tokens) != running or result.violations:
            raise RuntimeError(f"a step gave {len(result.tokens)} tokens and {result.violations}")

    def mean_of(self, part: str) -> float:
        """Seconds per step, without the largest hundredth: a step that the machine took away is not the check's."""
        values = sorted(parts.get(part, 0.0) for parts in self.parts)
        return statistics.mean(values[: max(1, len(values) - len(values) // 100)])


def run(*, quick: bool) -> dict[str, object]:
    """Cost, then findings."""
    figures = measure_cost(Slice(QUICK_LAYERS if quick else LAYERS), QUICK_SECONDS if quick else SECONDS)
    figures |= measure_findings(*(QUICK_FAULTS, QUICK_CLEAN_STEPS) if quick else (FAULTS, CLEAN_STEPS))
    failed = []
    if figures["detected_share"] != 1.0 or figures["false_positives"] or figures["wrong_tokens_out"]:
        failed.append("a fault was missed, a clean request accused or a wrong token let out")
    if not quick and figures["weights_over_cache"] < CACHES:  # type: ignore[operator]
        failed.append(f"the weights are {figures['weights_over_cache']} times the last-level cache, needed {CACHES}")
    return figures | ({"failed": failed} if failed else {})


def measure_cost(shape: Slice, seconds: dict[int, float]) -> dict[str, object]:
    """Overheads at each number of running requests."""
    model = build_model(shape, shape.operations(KvFormat.FP8, PAGE_SIZE), PROMPT + ANSWER)
    off, on = _Arm.over(shape, model, IntegrityMode.OFF), _Arm.over(shape, model, IntegrityMode.ENFORCE)
    weights = distinct_weight_bytes(model)
    figures: dict[str, object] = {
        "model": shape.describe(),
        "weight_bytes": weights,
        "weights_over_cache": round(weights / last_level_cache_bytes(), 1),
        "threads": torch.get_num_threads(),
        "context_tokens": PROMPT,
        "integrity_bytes_per_token": PAGE_METADATA_BYTES / PAGE_SIZE,
    }
    for running in RUNNING:
        for arm in (off, on):
            arm.begin(running, shape.vocabulary)
        deadline = time.monotonic() + seconds[running]
        for first in cycle((off, on)):
            # First, second, second, first: a drift meets both alike.
            second = on if first is off else off
            for arm in (first, second):
                arm.step(running)
            if (time.monotonic() > deadline and len(off.seconds) % 2 == 0) or len(off.seconds) >= STEPS_LIMIT:
                break
        for arm in (off, on):
            end_all(arm.engine, f"{running}", running)
        figures |= _figures_of(off, on, running)
    return figures


def _figures_of(off: _Arm, on: _Arm, running: int) -> dict[str, object]:
    base = statistics.median(off.seconds)
    # Two neighbouring pairs make one: off, on, on, off.
    without, with_check = (np.asarray(arm.seconds).reshape(-1, 2).mean(axis=-1) for arm in (off, on))
    percent = 100 * (with_check / without - 1)
    low, high = median_95(percent.tolist())
    paired = float(np.median(percent))
    parts = {part: on.mean_of(part) for part in PARTS}
    direct = sum(parts.values())
    totals = [sum(parts.get(part, 0.0) for part in PARTS) for parts in on.parts]
    direct_low, direct_high = bootstrap_95(lambda drawn: np.mean(drawn, axis=-1), totals)
    narrow = high - low < NARROW_POINTS
    figures: dict[str, object] = {
        f"overhead_percent_{running}": round(paired if narrow else 100 * direct / base, 3),
        f"overhead_basis_{running}": "paired" if narrow else "direct",
        f"overhead_paired_percent_{running}": round(paired, 3),
        f"overhead_paired_percent_{running}_95": [round(low, 3), round(high, 3)],
        f"overhead_direct_percent_{running}": round(100 * direct / base, 3),
        f"overhead_direct_percent_{running}_95": [round(100 * bound / base, 3) for bound in (direct_low, direct_high)],
        f"overhead_us_{running}": round((paired / 100 * base if narrow else direct) * 1e6, 1),
        f"overhead_direct_us_{running}": round(direct * 1e6, 1),
        f"step_ms_{running}": round(base * 1e3, 2),
        f"steps_{running}": len(off.seconds),
        f"kv_write_percent_{running}": round(100 * off.mean_of("kv_write") / base, 3),
    }
    return figures | {f"{part}_us_{running}": round(value * 1e6, 1) for part, value in parts.items()}


def measure_findings(faults_per_kind: int, clean_steps: int) -> dict[str, object]:
    """Detection and false positives, kinds and stretches of clean traffic spread over all cores."""
    workers = len(os.sched_getaffinity(0))
    share = -(-clean_steps // (2 * workers))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        clean = [pool.submit(_clean, share, seed) for seed in range(2 * workers)]
        campaigns = [pool.submit(_campaign, kind, faults_per_kind) for kind in FaultKind]
        found = [future.result() for future in campaigns]
        quiet = [future.result() for future in clean]
    planted, detected = sum(one.planted for one in found), sum(one.detected for one in found)
    enough = all(one.planted >= faults_per_kind for one in found)
    return {
        "faults_planted": planted,
        "faults_per_kind": faults_per_kind,
        "detected_share": detected / planted if enough else 0.0,
        "wrong_tokens_out": sum(one.wrong_tokens_out for one in found),
        "unaffected_requests_harmed": sum(one.harmed for one in found),
        "clean_steps": sum(one.steps for one in quiet),
        "false_positives": sum(one.false_positives for one in (*found, *quiet)),
        "detected_by_kind": {
            str(kind): f"{one.detected}/{one.planted}" for kind, one in zip(FaultKind, found, strict=True)
        },
    }


def sheet(figures: dict[str, object]) -> str:
    """The figures for people."""
    lines = [
        f"{figures['model']}",
        f"{figures['weight_bytes']:,} bytes of weights, {figures['weights_over_cache']} times the last-level cache; "
        f"{figures['threads']} threads; contexts from {figures['context_tokens']} tokens; FP8 KV, pages of {PAGE_SIZE}",
        f"integrity records: {figures['integrity_bytes_per_token']} bytes per token",
        "",
        f"{'L0 to L4, Enforce against Off':32}" + "".join(f"{f'{running} running':>22}" for running in RUNNING),
    ]
    rows = {
        "step without the check, ms": "step_ms_{}",
        "steps of each": "steps_{}",
        "paired, %": "overhead_paired_percent_{}",
        "  paired, 95 %": "overhead_paired_percent_{}_95",
        "direct, %": "overhead_direct_percent_{}",
        "  direct, 95 %": "overhead_direct_percent_{}_95",
        "direct, µs": "overhead_direct_us_{}",
        **{f"  {part}": f"{part}_us_{{}}" for part in PARTS},
        "all of kv_write (both arms), %": "kv_write_percent_{}",
        "counts as the overhead, %": "overhead_percent_{}",
        "  from": "overhead_basis_{}",
    }
    for title, name in rows.items():
        lines.append(f"{title:32}" + "".join(f"{figures[name.format(running)]!s:>22}" for running in RUNNING))
    by_kind = figures["detected_by_kind"]
    assert isinstance(by_kind, dict)
    lines += [
        "",
        f"faults found: {figures['detected_share']:.2%} of {figures['faults_planted']}; wrong tokens out: "
        f"{figures['wrong_tokens_out']}; unaffected requests harmed: {figures['unaffected_requests_harmed']}; "
        f"false positives: {figures['false_positives']}, also in {figures['clean_steps']:,} steps without faults",
        "  " + ", ".join(f"{kind} {found}" for kind, found in by_kind.items()),
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Found:
    """What a worker process reports."""

    steps: int
    false_positives: int
    planted: int = 0
    detected: int = 0
    wrong_tokens_out: int = 0
    harmed: int = 0


def _campaign(kind: FaultKind, faults: int) -> _Found:
    from tests.runtime.engine.campaign import run_campaign

    torch.set_num_threads(1)
    result = run_campaign(faults, CAMPAIGN_SEED, kinds=(kind,))
    return _Found(
        result.steps,
        result.false_positives,
        result.planted,
        result.detected,
        result.wrong_tokens_out,
        len(result.harmed),
    )


def _clean(steps: int, seed: int) -> _Found:
    from tests.runtime.engine.campaign import run_clean

    torch.set_num_threads(1)
    result = run_clean(steps, seed)
    return _Found(result.steps, result.false_positives)
