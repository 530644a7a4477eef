"""What is said of a compiled kernel, from numbers alone."""

from __future__ import annotations

import pytest

from octavo_kernels.aot.gates import problems
from octavo_kernels.aot.limits import LIMITS
from octavo_kernels.aot.report import family
from octavo_kernels.aot.results import Measured
from octavo_kernels.triton.aot_case import ARCHITECTURES, AotCase, Architecture

CASE = AotCase(
    name="case", kernel=None, signature={}, constants={}, max_registers=128, mma=lambda architecture: "wgmma"
)
GOOD = Measured(registers=128, shared_bytes=99 * 1024, warps=4, matrix=("wgmma.mma_async.sync.aligned.m64n64k16",))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_kernel_at_every_limit_is_green(architecture: Architecture) -> None:
    assert problems(CASE, architecture, GOOD) == ()


@pytest.mark.parametrize(
    ("architecture", "kib"), [(80, 163), (86, 99), (89, 99), (90, 227), (100, 227), (103, 227), (120, 99), (121, 99)]
)
def test_a_block_has_the_shared_memory_that_nvidia_says(architecture: Architecture, kib: int) -> None:
    assert LIMITS[architecture].shared_bytes_per_block == kib * 1024
    fits = Measured(shared_bytes=kib * 1024, matrix=GOOD.matrix)
    assert problems(CASE, architecture, fits) == ()
    over = Measured(shared_bytes=kib * 1024 + 1, matrix=GOOD.matrix)
    assert "KiB of shared memory" in problems(CASE, architecture, over)[0]


def test_every_red_gate_is_named_at_once() -> None:
    bad = Measured(registers=129, stack_bytes=8, shared_bytes=300 * 1024, matrix=("mma.sync.aligned.m16n8k16",))
    spills, registers, shared, instruction = problems(CASE, 90, bad)
    assert "8 bytes of stack" in spills
    assert "129 registers, needed at most 128" in registers
    assert "300.0 KiB" in shared
    assert "'wgmma', found mma.sync" in instruction


def test_an_error_is_the_only_thing_said_of_a_kernel_that_does_not_compile() -> None:
    assert problems(CASE, 90, Measured(error="no such type")) == ("does not compile: no such type",)


@pytest.mark.parametrize(
    ("instructions", "name"),
    [
        ((), ""),
        (("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",), "mma"),
        (("mma.sync.aligned.m16n8k16", "wgmma.mma_async.sync.aligned.m64n64k16"), "wgmma"),
        (("tcgen05.mma.cta_group::1.kind::f16",), "tcgen05"),
        (("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16",), "tcgen05 fp4"),
        (("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X",), "mma fp4"),
    ],
)
def test_the_table_names_the_best_family(instructions: tuple[str, ...], name: str) -> None:
    assert family(Measured(matrix=instructions)) == name
