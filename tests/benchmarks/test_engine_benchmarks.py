"""The engine's benchmarks run, say what they promise, and take their own gates seriously; how fast anything is, no test
asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import concurrency, integrity, soak
from benchmarks.concurrency import Split, predicted_gain
from benchmarks.intervals import median_95, ratio_of_medians_95
from benchmarks.synthetic_model import Timers
from octavo_runtime.contract import metrics

ROOT = Path(__file__).parents[2]


def test_what_only_reading_takes_doubles_the_throughput_and_what_each_request_adds_gains_nothing() -> None:
    reading = Split(weights=3.0, kv=1.0, compute=0.0, host=0.0)
    assert predicted_gain(reading, reading, weights_growth=1.0) == 2.0
    assert predicted_gain(Split(1.0, 0.0, 0.0, 0.0), Split(2.0, 0.0, 0.0, 0.0), weights_growth=2.0) == 1.0
    half, computing = Split(0.0, 0.0, compute=1.5, host=0.5), Split(0.0, 0.0, compute=3.0, host=1.0)
    assert predicted_gain(half, computing, weights_growth=1.0) == 1.0
    fixed = Split(0.0, 0.0, compute=3.0, host=1.0)
    assert predicted_gain(fixed, fixed, weights_growth=1.0) == 2.0


def test_the_interval_of_a_steady_sample_is_narrow_and_holds_its_median() -> None:
    low, high = median_95([10.0 + 0.1 * (i % 3) for i in range(99)])
    assert 10.0 <= low <= 10.1 <= high <= 10.2
    low, high = ratio_of_medians_95([4.0] * 9, [2.0] * 9)
    assert (low, high) == (2.0, 2.0)


def test_timers_add_up_and_start_anew_when_taken() -> None:
    ticks = iter(range(100))
    timers = Timers(lambda: float(next(ticks)))
    double = timers.around("double", lambda value: 2 * value)
    assert (double(3), double(4)) == (6, 8)
    assert timers.take() == {"double": 2.0}
    assert timers.take() == {}


AT_REST = {
    f'{metrics.VLLM_CACHE_CONFIG}{{block_size="16",model_name="m",num_gpu_blocks="100"}}': 1.0,
    metrics.KV_PAGES_FREE: 60.0,
    metrics.KV_PAGES_SET_ASIDE: 0.0,
    metrics.KV_TOKENS_RETAINED: 40.0 * soak.PAGE_SIZE,
    metrics.KV_TOKENS_USED: 0.0,
    metrics.REQUESTS_RUNNING: 0.0,
    metrics.REQUESTS_WAITING: 0.0,
    f'{metrics.INTEGRITY_VIOLATIONS}_total{{reason="tag"}}': 0.0,
    **{
        f"{name}_total": 1.0
        for name in (
            metrics.ENGINE_STEPS,
            metrics.PREEMPTIONS,
            metrics.FORKS,
            metrics.PREFIX_HIT_TOKENS,
            metrics.INTEGRITY_AUDITS,
        )
    },
}


def seen(**outcomes: int) -> soak.Seen:
    one = soak.Seen(most_waiting=3)
    one.outcomes.update({"turned_away": 1, **outcomes})
    return one


def test_a_soak_after_which_everything_is_in_its_place_has_not_failed() -> None:
    assert "failed" not in soak.figures_of(seen(), AT_REST, 5.0, 60.0)


@pytest.mark.parametrize(
    ("change", "outcomes", "reason"),
    [
        ({metrics.KV_PAGES_FREE: 59.0}, {}, "pages are missing or doubled"),
        ({metrics.KV_TOKENS_USED: 16.0}, {}, "pages are missing or doubled"),
        ({metrics.REQUESTS_WAITING: 1.0}, {}, "requests are left"),
        ({f'{metrics.INTEGRITY_VIOLATIONS}_total{{reason="tag"}}': 1.0}, {}, "violations were counted"),
        ({}, {"faults": 1}, "a request ended as none should"),
        ({}, {"turned_away": -1}, "nobody was turned away: it was no overload"),
    ],
)
def test_a_soak_fails_with_what_is_not_in_its_place(
    change: dict[str, float], outcomes: dict[str, int], reason: str
) -> None:
    assert soak.figures_of(seen(**outcomes), AT_REST | change, 5.0, 60.0)["failed"] == [reason]


def test_more_in_line_than_the_limits_allow_fails_the_soak() -> None:
    crowd = seen()
    crowd.most_waiting = soak.SLOTS + soak.QUEUED + 1
    assert soak.figures_of(crowd, AT_REST, 5.0, 60.0)["failed"] == ["more waited than may"]


def test_a_figure_that_does_not_hold_ends_the_command_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "run", lambda **_: {"failed": ["pages are missing or doubled"]})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "soak", "--json"])
    assert command.main() == 1
    assert "pages are missing or doubled" in capsys.readouterr().err


PROMISED = {
    "host_overhead": ("step_ms_64x21k", "step_ms_64x43k"),
    "concurrency": ("throughput_gain_fp8", "predicted_gain", "host_share", "capacity_ratio_gqa", "capacity_ratio_mla"),
    "integrity": (
        *(f"overhead_percent_{running}" for running in integrity.RUNNING),
        *("overhead_us_64", "detected_share", "false_positives", "wrong_tokens_out", "integrity_bytes_per_token"),
    ),
    "soak": ("answered", "turned_away", "pages_free", "violations"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROMISED)
def test_the_benchmark_gives_every_figure_that_it_promises(name: str) -> None:
    argv = [sys.executable, "-m", "benchmarks", name, "--quick", "--json"]
    done = subprocess.run(argv, cwd=ROOT, timeout=840, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert set(PROMISED[name]) <= set(figures)
    assert figures.get("host_share", 0) <= concurrency.MOST_HOST_SHARE
    assert figures.get("detected_share", 1) == 1
    assert figures.get("integrity_bytes_per_token", 0) < 0.2
