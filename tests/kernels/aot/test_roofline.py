"""Bounds and occupancy by hand calculation, and the document that quotes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_kernels.aot.occupancy import occupancy
from octavo_kernels.aot.results import Measured
from octavo_kernels.aot.roofline import (
    B200,
    CONTEXT,
    H200,
    Work,
    attention,
    bounds,
    experts_hit,
    occupancy_table,
    replaced,
    step_seconds,
)
from octavo_kernels.aot.shapes import GLM_52, KIMI_K26

DOCUMENT = Path(__file__).parents[3] / "docs" / "kernels.md"


def test_the_document_quotes_what_the_command_prints() -> None:
    assert bounds() in DOCUMENT.read_text()


def test_a_bf16_cache_of_32_requests_is_the_published_48_gigabytes() -> None:
    read = KIMI_K26.layers * attention(KIMI_K26, 32, "", 2).bytes
    assert read == pytest.approx(48.2e9, rel=0.01)


def test_fp8_pages_halve_what_attention_reads_and_leave_its_products() -> None:
    wide, narrow = attention(GLM_52, 32, "", 2), attention(GLM_52, 32, "", 1)
    assert narrow.bytes / wide.bytes == pytest.approx(0.5, abs=0.01)
    assert narrow.flops == wide.flops == 2 * 32 * CONTEXT * 8 * (576 + 512)


def test_one_token_meets_its_experts_and_many_meet_all() -> None:
    assert experts_hit(KIMI_K26, 1) == pytest.approx(8)
    assert experts_hit(KIMI_K26, 10_000) == pytest.approx(384)


def test_the_bound_is_the_slower_of_memory_and_tensor_cores() -> None:
    assert Work("", 4.8e12, 1.0, "bf16").seconds(H200) == (1.0, "memory")
    assert Work("", 1.0, 1979e12, "fp8").seconds(H200) == (1.0, "compute")
    # Without an FP4 instruction the values are widened and multiplied in BF16.
    assert Work("", 1.0, 989e12, "fp4").seconds(H200) == (1.0, "compute")
    assert Work("", 1.0, 9e15, "fp4").seconds(B200) == (1.0, "compute")


@pytest.mark.parametrize(("batch", "kv", "published"), [(32, 2, 20.6e-3), (64, 1, 29.2e-3)])
def test_published_steps_take_longer_than_the_bound_and_not_twice_as_long(
    batch: int, kv: int, published: float
) -> None:
    bound = step_seconds(KIMI_K26, batch, H200, kv=kv, expert_bits=4.5)
    assert bound < published < 2 * bound


@pytest.mark.parametrize(
    ("measured", "architecture", "blocks", "bound_by"),
    [
        (Measured(registers=168, shared_bytes=22 * 1024, warps=4), 90, 3, "registers"),
        (Measured(registers=32, shared_bytes=96 * 1024, warps=4), 90, 2, "shared memory"),
        (Measured(registers=32, shared_bytes=98 * 1024, warps=4), 89, 1, "shared memory"),
        (Measured(registers=32, shared_bytes=0, warps=8), 90, 8, "registers"),
        (Measured(registers=16, shared_bytes=0, warps=8), 120, 6, "warps"),
        (Measured(registers=16, shared_bytes=0, warps=1), 86, 16, "blocks"),
        (Measured(registers=64, shared_bytes=0, warps=4, tensor_columns=256), 100, 2, "tensor memory"),
    ],
)
def test_the_scarcest_resource_decides_how_many_blocks_fit(
    measured: Measured, architecture: int, blocks: int, bound_by: str
) -> None:
    found = occupancy(measured, architecture)
    assert (found.blocks, found.bound_by) == (blocks, bound_by)
    assert found.warps == blocks * measured.warps


def test_the_occupancy_table_has_a_row_per_case_of_the_newest_triton() -> None:
    measured = Measured(registers=168, shared_bytes=22 * 1024, warps=4).as_json()
    results = [
        {"case": "a", "architecture": 90, "triton": "3.6.0", "outcome": "compiled", "measured": measured},
        {"case": "b", "architecture": 90, "triton": "3.9.0", "outcome": "compiled", "measured": measured},
        {"case": "c", "architecture": 90, "triton": "3.9.0", "outcome": "refused", "measured": None},
    ]
    table = occupancy_table(results, [90])
    assert "Triton 3.9.0" in table
    assert "| b | 168 | 22 | 3 | 12/64 | registers |" in table
    assert "| a |" not in table
    assert "| c |" not in table


def test_a_section_is_replaced_between_its_marks_and_only_there() -> None:
    document = "head\n<!-- x -->\nold\n<!-- end x -->\ntail"
    assert replaced(document, "x", "new") == "head\n<!-- x -->\n\nnew\n\n<!-- end x -->\ntail"
    with pytest.raises(ValueError, match="lacks"):
        replaced(document, "y", "new")
