"""The choice of tiles: every tile that is launched is one that is compiled ahead of time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from octavo_kernels.triton import attention_tiles, mla_attention
from octavo_kernels.triton.aot_case import ARCHITECTURES, DISTINCT, AotCase, Architecture
from octavo_kernels.triton.experts_grouped import AOT_CASES
from octavo_kernels.triton.experts_tiles import Arithmetic, Tile, has_fp8, has_nvfp4, tile_for


@pytest.mark.parametrize("arithmetic", list(Arithmetic))
@pytest.mark.parametrize("in_features", [2048, 7168, 6144, 768])
def test_every_tile_is_compiled_ahead_of_time(arithmetic: Arithmetic, in_features: int) -> None:
    compiled = {
        (
            case.constants["ARITHMETIC"],
            Tile(
                rows=int(str(case.constants["BN"])),
                tokens=int(str(case.constants["BM"])),
                depth=int(str(case.constants["BK"])),
                warps=case.num_warps,
                stages=case.num_stages,
            ),
        )
        for case in AOT_CASES
    }
    for tokens in range(1, 300):
        assert (arithmetic.value, tile_for(arithmetic, tokens, in_features)) in compiled


def compiled_tiles(cases: Iterable[AotCase], kernel: str, architecture: Architecture) -> set[object]:
    """(BLOCK_D, FP8, tile) of what is compiled of a kernel."""
    return {
        (
            case.constants.get("BLOCK_D"),
            case.constants["FP8"],
            attention_tiles.Tile(
                queries=int(str(case.constants["BLOCK_M"])),
                keys=int(str(case.constants["BLOCK_N"])),
                warps=case.num_warps,
                stages=case.num_stages,
                native_fp8=bool(case.constants["NATIVE"]),
            ),
        )
        for case in cases
        if case.name.startswith(kernel) and "BLOCK_M" in case.constants
        if architecture in case.architectures and not case.why_not(architecture)
    }


@pytest.mark.parametrize("architecture", DISTINCT)
@pytest.mark.parametrize("fp8_pages", [False, True])
def test_every_tile_of_latent_attention_is_compiled_ahead_of_time(architecture: Architecture, fp8_pages: bool) -> None:
    latent = attention_tiles.mla_tile(architecture, fp8_pages=fp8_pages)
    for kernel in ("mla_decode/", "mla_prefill/"):
        assert (None, fp8_pages, latent) in compiled_tiles(mla_attention.AOT_CASES, kernel, architecture)


@pytest.mark.parametrize("group", [1, 8, 16, 17, 64, 150])
def test_narrower_heads_take_the_tile_of_128(group: int) -> None:
    for architecture in ARCHITECTURES:
        for dim in (8, 64, 80, 96):
            for fp8_pages in (False, True):
                narrow, wide = (
                    (
                        attention_tiles.decode_tile(architecture, group=group, dim=each, fp8_pages=fp8_pages),
                        attention_tiles.prefill_tile(architecture, dim=each, fp8_pages=fp8_pages),
                    )
                    for each in (dim, 128)
                )
                assert narrow == wide


def test_a_generation_that_nobody_compiled_for_multiplies_neither_fp8_nor_nvfp4() -> None:
    assert not has_fp8(110)
    assert not has_nvfp4(110)
    assert has_fp8(89)
    assert not has_fp8(87)
