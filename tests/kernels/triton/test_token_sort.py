"""The token sort puts every slot of an expert into that expert's tiles, and nothing else anywhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.triton.token_sort import NO_SLOT, most_tiles, sort_slots

TILE = 4


def tiles_of(ids: torch.Tensor, experts: int) -> list[tuple[int, list[int]]]:
    """(expert, slots) of each tile."""
    found = sort_slots(ids, experts, TILE)
    count = int(found.tile_count)
    assert count <= found.most_tiles
    order = found.order[: count * TILE].view(count, TILE).tolist()
    return list(zip(found.tile_experts[:count].tolist(), order, strict=True))


def expected(ids: torch.Tensor, experts: int) -> list[tuple[int, list[int]]]:
    tiles = []
    for expert in range(experts):
        slots = torch.nonzero(ids.flatten() == expert).flatten().tolist()
        for start in range(0, len(slots), TILE):
            part = slots[start : start + TILE]
            tiles.append((expert, part + [NO_SLOT] * (TILE - len(part))))
    return tiles


@settings(deadline=None, max_examples=8)
@given(tokens=st.integers(1, 40), top_k=st.integers(1, 3), experts=st.integers(1, 7), seed=st.integers(0, 99))
def test_each_expert_gets_its_slots_in_order(tokens: int, top_k: int, experts: int, seed: int) -> None:
    # One below and one above the range: experts that do not exist.
    ids = torch.randint(-1, experts + 1, (tokens, top_k), generator=torch.Generator().manual_seed(seed))
    assert tiles_of(ids, experts) == expected(ids, experts)


def test_more_slots_than_one_block_and_far_ids_are_sorted_as_well() -> None:
    ids = torch.arange(3000).view(1000, 3) % 2
    ids[5, 1] = 1 << 32
    assert tiles_of(ids, 2) == expected(ids, 2)


@pytest.mark.parametrize(("slots", "experts", "needed"), [(1, 8, 1), (8, 2, 3), (9, 2, 3), (3, 8, 3)])
def test_the_bound_that_the_host_knows_is_reached_and_never_passed(slots: int, experts: int, needed: int) -> None:
    assert most_tiles(slots, experts, TILE) == needed
