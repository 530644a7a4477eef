"""`python -m benchmarks kernels` runs and says what it promises; how fast anything is, no test asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROMISED = (
    "moe_int4_share_of_bandwidth",
    "moe_int4_vs_bf16_linear",
    "moe_int4_vs_fp32_linear",
    "moe_int4_vs_aten_int4",
    "fp8_decode_attention_vs_sdpa_fp32",
    "fp8_to_float_share_of_bandwidth",
)


@pytest.mark.slow
def test_the_benchmark_gives_every_figure_for_one_thread_and_two() -> None:
    argv = [sys.executable, "-m", "benchmarks", "kernels", "--quick", "--json"]
    done = subprocess.run(argv, cwd=ROOT, timeout=280, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    for name in PROMISED:
        assert figures[name] == max(figures[f"{name}_1t"], figures[f"{name}_2t"]) > 0
    assert figures["moe_bytes_per_token"] == 8 * 3 * 2048 * 768 * (4 + 16 / 128) / 8
