"""The choice of tiles: every tile that is launched is one that is compiled ahead of time."""

from __future__ import annotations

import pytest

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


def test_a_generation_that_nobody_compiled_for_multiplies_neither_fp8_nor_nvfp4() -> None:
    assert not has_fp8(110)
    assert not has_nvfp4(110)
    assert has_fp8(89)
    assert not has_fp8(87)
