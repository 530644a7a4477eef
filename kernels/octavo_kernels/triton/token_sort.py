# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Token sort: routed slots grouped by expert and padded to whole tiles, on the device and without a host sync.

A slot is one (token, place) pair of a routing, numbered `token * k + place`. Two launches, one program per expert in
each: the first counts the expert's slots, the second derives from all counts where its tiles begin and writes its
slots there in rising order. No atomics, so the order is the same every time. A slot whose expert does not exist is
found by no program and takes part in nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_kernels.triton.aot_case import AotCase

NO_SLOT = -1
"""Filler of an expert's last tile."""

BLOCK = 1024
"""Slots that one program looks at in one go."""

EXPERTS_AT_ONCE = 1024
"""Experts whose counts one program sums; more are refused."""


@dataclass(frozen=True)
class SortedSlots:
    """Slots by expert, in tiles of one expert each."""

    order: torch.Tensor
    """[most_tiles * tile] int32: slot, or NO_SLOT; unset behind the last tile."""
    tile_experts: torch.Tensor
    """[most_tiles] int32: expert of each tile; unset behind the last tile."""
    tile_count: torch.Tensor
    """[1] int32: tiles that there are."""
    counts: torch.Tensor
    """[E] int32: slots of each expert."""
    most_tiles: int
    """Bound on `tile_count` that the host knows from the sizes alone: the extent of a launch."""


@triton.jit(do_not_specialize=["slots"])
def count_slots(ids, counts, slots, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, slots, BLOCK):
        found = tl.load(ids + start + place, mask=start + place < slots, other=-1)
        count += (found == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(count, 0))


@triton.jit(do_not_specialize=["slots"])
def place_slots(
    ids,
    counts,
    order,
    tile_experts,
    tile_count,
    slots,
    experts,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    expert = tl.program_id(0)
    every = tl.arange(0, EXPERTS)
    count_of = tl.load(counts + every, mask=every < experts, other=0)
    tiles_of = (count_of + TILE - 1) // TILE
    first = tl.sum(tl.where(every < expert, tiles_of, 0), 0)
    tiles = tl.sum(tl.where(every == expert, tiles_of, 0), 0)
    count = tl.sum(tl.where(every == expert, count_of, 0), 0)
    tl.store(tile_count, tl.sum(tiles_of, 0), mask=expert == 0)
    block = tl.arange(0, BLOCK)
    for start in range(0, tiles, BLOCK):
        tl.store(tile_experts + first + start + block, tl.zeros([BLOCK], tl.int32) + expert, mask=start + block < tiles)
    place = first * TILE
    filler = count + tl.arange(0, TILE)
    tl.store(order + place + filler, tl.full([TILE], -1, tl.int32), mask=filler < tiles * TILE)
    for start in range(0, slots, BLOCK):
        found = tl.load(ids + start + block, mask=start + block < slots, other=-1)
        mine = (found == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(mine, 0) - 1, start + block, mask=mine > 0)
        place += tl.sum(mine, 0)


def most_tiles(slots: int, experts: int, tile: int) -> int:
    """Tiles of `tile` slots that `slots` slots can need at most: the last one of each expert may be short."""
    return (slots + min(slots, experts) * (tile - 1)) // tile


def sort_slots(ids: torch.Tensor, experts: int, tile: int) -> SortedSlots:
    """Group the slots of a routing `ids` [T, k] int64, contiguous, by expert in tiles of `tile` slots."""
    slots = ids.numel()
    most = most_tiles(slots, experts, tile)
    counts = torch.empty(experts, dtype=torch.int32, device=ids.device)
    order = torch.empty(most * tile, dtype=torch.int32, device=ids.device)
    tile_experts = torch.empty(most, dtype=torch.int32, device=ids.device)
    tile_count = torch.empty(1, dtype=torch.int32, device=ids.device)
    padded = triton.next_power_of_2(experts)
    count_slots[(experts,)](ids, counts, slots, BLOCK=BLOCK)
    place_slots[(experts,)](
        ids, counts, order, tile_experts, tile_count, slots, experts, TILE=tile, BLOCK=BLOCK, EXPERTS=padded
    )
    return SortedSlots(order, tile_experts, tile_count, counts, most)


AOT_CASES: tuple[AotCase, ...] = (
    AotCase(
        name="token_sort/count",
        kernel=count_slots,
        signature={"ids": "*i64", "counts": "*i32", "slots": "i32"},
        constants={"BLOCK": BLOCK},
        max_registers=64,
    ),
    *(
        AotCase(
            name=f"token_sort/place/tile{tile}/experts{experts}",
            kernel=place_slots,
            signature={
                "ids": "*i64",
                "counts": "*i32",
                "order": "*i32",
                "tile_experts": "*i32",
                "tile_count": "*i32",
                "slots": "i32",
                "experts": "i32",
            },
            constants={"TILE": tile, "BLOCK": BLOCK, "EXPERTS": experts},
            max_registers=96,
        )
        for tile, experts in ((16, 512),)
    ),
)
