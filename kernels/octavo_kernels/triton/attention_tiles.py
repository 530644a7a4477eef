"""Sizes of the attention kernels' programs, by architecture and shape: pure functions that launchers and AOT share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from octavo_kernels.triton.aot_case import ARCHITECTURES, AotCase, Architecture

PROGRAMS_WANTED = 1024
"""Decode programs that fill the largest GPU several times over; with more rows and heads there are fewer splits."""
KEYS_PER_SPLIT = 256
"""Below this a split saves less time than putting the parts together costs."""
MOST_SPLITS = 64
SPLITS_AT_ONCE = 8
"""Parts of a context that `merge_splits` holds at a time."""


@dataclass(frozen=True)
class Tile:
    """Sizes of one program and how it is compiled."""

    queries: int
    """BLOCK_M: query tokens times query heads of one KV head."""
    keys: int
    """BLOCK_N: keys per turn of the loop."""
    warps: int
    stages: int
    native_fp8: bool = False
    """Whether FP8 is widened by the hardware's instruction."""

    @property
    def options(self) -> dict[str, int | bool]:
        """Compile-time values that are not shapes, as keyword arguments of a launch."""
        return {
            "BLOCK_M": self.queries,
            "BLOCK_N": self.keys,
            "NATIVE": self.native_fp8,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def power_of_two(least: int) -> int:
    """The smallest power of two from `least` up."""
    return 1 << (least - 1).bit_length()


def decode_tile(architecture: Architecture, *, group: int, dim: int, fp8_pages: bool) -> Tile:
    """Tile of `paged_decode` for a group of query heads per KV head and a head dimension."""
    native = architecture >= 89 and fp8_pages
    queries = max(16, min(64, power_of_two(group)))
    # Widening by integer operations takes registers; on 12.x the tag check beside 64 keys spills with Triton 3.6.
    keys = 32 if dim > 128 or (fp8_pages and (not native or architecture >= 120)) else 64
    return Tile(queries, keys, warps=8 if dim > 128 or queries > 16 else 4, stages=3, native_fp8=native)


def prefill_tile(architecture: Architecture, *, dim: int, fp8_pages: bool) -> Tile:
    """Tile of `paged_prefill`: from 64 queries up `wgmma` (9.0) and `tcgen05` (10.x) multiply.

    Elsewhere all operands pass through registers, and larger tiles spill.
    """
    native = architecture >= 89 and fp8_pages
    if dim <= 128 and architecture in (90, 100, 103):
        return Tile(128, 64, warps=8, stages=2, native_fp8=native)
    return Tile(64, 64 if dim <= 128 and fp8_pages else 32, warps=8, stages=2, native_fp8=native)


def mla_tile(architecture: Architecture, *, fp8_pages: bool) -> Tile:
    """Tile of the latent kernels: 16 queries, because 64 sums of 512 values each spill."""
    native = architecture >= 89 and fp8_pages
    return Tile(16, 16 if fp8_pages and not native else 32, warps=8, stages=2, native_fp8=native)


def splits_for(rows: int, heads: int, longest_context: int) -> int:
    """In how many parts decode cuts each context, a power of two; from sizes that the host knows, never lengths."""
    useful = max(1, min(PROGRAMS_WANTED // max(1, rows * heads), longest_context // KEYS_PER_SPLIT, MOST_SPLITS))
    return 1 << (useful.bit_length() - 1)


def scratch(query: torch.Tensor, rows: int, splits: int, dim: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Where the splits of a context leave their part: values [R, heads, splits, dim] and sums [R, heads, splits, 2].

    By row, for only rows of one token are split: by token, a long chunk would ask for gigabytes that nobody touches.
    """
    if splits == 1:
        return None, None
    shape = (rows, query.shape[1], splits)
    values = torch.empty((*shape, dim), dtype=torch.float32, device=query.device)
    return values, torch.empty((*shape, 2), dtype=torch.float32, device=query.device)


def cases_by_tile(
    name: str,
    kernel: object,
    tile_of: Callable[[Architecture], Tile],
    *,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    max_registers: Callable[[Tile], int],
    mma: Callable[[Architecture], str | None],
    architectures: tuple[Architecture, ...] = ARCHITECTURES,
) -> list[AotCase]:
    """A kernel compiled once for each of these architectures, with the tile that its launcher takes there."""
    by_tile: dict[Tile, list[Architecture]] = {}
    for architecture in architectures:
        by_tile.setdefault(tile_of(architecture), []).append(architecture)
    cases = []
    for tile, where in by_tile.items():
        options = dict(tile.options)
        warps, stages = int(options.pop("num_warps")), int(options.pop("num_stages"))
        kind = f"{tile.queries}x{tile.keys}" + ("/native" if tile.native_fp8 else "")
        cases.append(
            AotCase(
                name=f"{name}/{kind}",
                kernel=kernel,
                signature=signature,
                constants={**constants, **options},
                num_warps=warps,
                num_stages=stages,
                max_registers=max_registers(tile),
                mma=mma,
                why_not=_taken_only_on(where),
                architectures=architectures,
            )
        )
    return cases


def _taken_only_on(where: list[Architecture]) -> Callable[[Architecture], str | None]:
    def why_not(architecture: Architecture) -> str | None:
        return None if architecture in where else "another tile is taken there"

    return why_not
