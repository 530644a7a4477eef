"""CPU kernels against the memory's speed and against torch, every arm in turn, in one process.

The arms of a comparison take turns, so that a busy moment of the machine meets all of them. A comparison is a ratio of
medians; a share of bandwidth holds a median against the fastest read of the same run, never the other way round; and
`intervals` says between which quartiles an arm's own times lie. Weights are visited in rotation over far more memory
than any cache holds, but for `--quick`, where only what the other arms read in between puts them out of it. The plain
name of a figure is the better one of both numbers of threads. INT4 rounds its activations to 8 bits where that is
fastest, as `moe_int4_exact_*` does not.
"""

from __future__ import annotations

import torch

from benchmarks import kernels_attention, kernels_experts, kernels_stream
from benchmarks.kernels_arms import Times
from octavo_kernels.cpu import library

THREADS = (1, 2)
ROUNDS, QUICK_ROUNDS = 25, 15


def run(quick: bool) -> dict[str, object]:
    """Measure with one thread and with two."""
    figures: dict[str, object] = {
        "variant": library.load().variant.name,
        "rounds": QUICK_ROUNDS if quick else ROUNDS,
        "call_microseconds": round(kernels_stream.call_microseconds(), 2),
    }
    before = torch.get_num_threads()
    best: dict[str, float] = {}
    try:
        for threads in THREADS:
            torch.set_num_threads(threads)
            for name, value in _measure(quick).items():
                figures[f"{name}_{threads}t"] = value
                if isinstance(value, float):
                    best[name] = max(value, best.get(name, 0.0))
    finally:
        torch.set_num_threads(before)
    ratios = {name: value for name, value in best.items() if "_vs_" in name or "_share_" in name}
    return ratios | {"moe_bytes_per_token": kernels_experts.bytes_per_token()} | figures


def _measure(quick: bool) -> dict[str, object]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    experts = kernels_experts.measure(rounds, experts=24 if quick else 128)
    attention = kernels_attention.measure(rounds, contexts=2 if quick else 8)
    conversion = kernels_stream.measure_conversion(rounds)
    moe_bytes = kernels_experts.bytes_per_token()
    figures: dict[str, object] = {
        "moe_int4_share_of_bandwidth": _ratio(moe_bytes / experts["int4"].median, experts["read"].best_rate),
        "moe_int4_exact_share_of_bandwidth": _ratio(
            moe_bytes / experts["int4_exact"].median, experts["read"].best_rate
        ),
        "moe_int4_vs_bf16_linear": _ratio(experts["bf16_linear"].median, experts["int4"].median),
        "moe_int4_vs_fp32_linear": _ratio(experts["fp32_linear"].median, experts["int4"].median),
        "moe_int4_exact_vs_bf16_linear": _ratio(experts["bf16_linear"].median, experts["int4_exact"].median),
        "moe_int4_vs_aten_int4": _ratio(experts["aten_int4"].median, experts["int4"].median),
        "fp8_decode_attention_vs_sdpa_fp32": _ratio(attention["sdpa_fp32"].median, attention["paged_fp8"].median),
        "fp8_decode_attention_batch_vs_sdpa_fp32": _ratio(
            attention["sdpa_fp32_batch"].median, attention["paged_fp8_batch"].median
        ),
        "fp8_to_float_share_of_bandwidth": _ratio(conversion["convert"].median_rate, conversion["memory"].best_rate),
        "read_gigabytes_per_second": round(experts["read"].best_rate / 1e9, 2),
        "moe_gigabytes_per_second": round(moe_bytes / experts["int4"].median / 1e9, 2),
    }
    arms = experts | attention | conversion
    return figures | {"intervals": {name: times.interval_microseconds for name, times in arms.items()}}


def _ratio(left: float, right: float) -> float:
    return round(left / right, 3)


def sheet(figures: dict[str, object]) -> str:
    """The figures for people: one row each, one column per number of threads; then every arm's times."""
    lines = [
        f"CPU kernels, {figures['variant']}; medians of {figures['rounds']} rounds in turns",
        f"one call from Python into C: {figures['call_microseconds']} µs",
        f"INT4 experts of one token, one layer: {figures['moe_bytes_per_token']:,} bytes read",
        "",
        f"{'':44}" + "".join(f"{threads} thread{'s' if threads > 1 else ' '}  " for threads in THREADS),
    ]
    names = [name.removesuffix("_1t") for name in figures if name.endswith("_1t") and name != "intervals_1t"]
    for name in names:
        lines.append(f"{name:44}" + "".join(f"{figures[f'{name}_{threads}t']:>8}   " for threads in THREADS))
    for threads in THREADS:
        intervals = figures[f"intervals_{threads}t"]
        assert isinstance(intervals, dict)
        lines += ["", f"{threads} thread{'s' if threads > 1 else ''}, µs: quartile, median, quartile"]
        lines += [f"  {name:20}" + "".join(f"{value:>12,.1f}" for value in row) for name, row in intervals.items()]
    return "\n".join(lines)


__all__ = ["Times", "run", "sheet"]
