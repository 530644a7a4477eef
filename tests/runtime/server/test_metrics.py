"""The exposition of a server's metrics."""

from __future__ import annotations

import pytest
from msgspec.structs import fields, replace

from octavo_kernels.formats.verdict import Finding, reasons_of, word_of
from octavo_runtime.contract import metrics as names
from octavo_runtime.engine.messages import EngineStats
from octavo_runtime.server.metrics import EngineView, ServerMetrics

STEP = 3


def stats(**violations: int) -> EngineStats:
    return EngineStats(
        steps=STEP,
        running=0,
        waiting=0,
        kv_tokens_used=0,
        kv_pages_free=9,
        kv_pages_set_aside=1,
        preemptions=2,
        recomputed=4,
        integrity_checks=STEP,
        integrity_violations=violations,
        integrity_cancelled=0,
    )


def exposition(engine: EngineStats) -> list[str]:
    view = EngineView(lambda: engine, lambda: None, lambda: 0.5, lambda: None)
    return ServerMetrics("m", 1, view).exposition().decode().splitlines()


@pytest.mark.parametrize("word", [0, STEP - 1, *(word_of(finding) for finding in Finding)])
def test_every_reason_that_a_verdict_can_give_has_a_series_before_its_first_violation(word: int) -> None:
    (reason,) = reasons_of(word, STEP)
    line = f'{names.INTEGRITY_VIOLATIONS}_total{{reason="{reason}"}}'
    assert f"{line} 0.0" in exposition(stats())
    assert f"{line} 1.0" in exposition(stats(**{reason: 1}))


def test_what_an_engine_counts_is_exposed_under_the_contracts_names() -> None:
    lines = exposition(stats())
    assert f"{names.KV_PAGES_SET_ASIDE} 1.0" in lines
    assert f"{names.PREEMPTIONS}_total 2.0" in lines
    assert f"{names.INTEGRITY_RECOMPUTED}_total 4.0" in lines
    assert f"{names.ENGINE_SILENT_SECONDS} 0.5" in lines


def test_reasons_of_the_other_layers_get_a_series_when_they_are_first_seen() -> None:
    assert f'{names.INTEGRITY_VIOLATIONS}_total{{reason="digest"}} 2.0' in exposition(stats(digest=2))


def test_every_name_that_vllm_has_too_is_exposed_under_both() -> None:
    engine = replace(stats(), preemptions=7, prefix_queried_tokens=50, prefix_hit_tokens=20, running=3, waiting=4)
    lines = exposition(engine)
    for name, value in (
        (names.PREEMPTIONS, 7.0),
        (names.PREFIX_QUERIED_TOKENS, 50.0),
        (names.PREFIX_HIT_TOKENS, 20.0),
        (names.REQUESTS_RUNNING, 3.0),
        (names.REQUESTS_WAITING, 4.0),
    ):
        end = "" if name in {names.REQUESTS_RUNNING, names.REQUESTS_WAITING} else "_total"
        assert f"{name}{end} {value}" in lines
        assert f'{names.VLLM_ALIASES[name]}{end}{{model_name="m"}} {value}' in lines


def test_every_figure_of_the_engine_has_its_metric() -> None:
    """Fields that are numbers, each with another value: a swap or an omission shows."""
    numbers = [f.name for f in fields(EngineStats) if f.name not in {"integrity_violations", "integrity_stalled"}]
    engine = replace(stats(), **{name: 1000 + place for place, name in enumerate(numbers)})
    shown = {line.rsplit(" ", 1)[1] for line in exposition(engine) if not line.startswith("#")}
    assert {name for place, name in enumerate(numbers) if f"{1000.0 + place}" not in shown} == set()
