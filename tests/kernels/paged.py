"""A small paged pool with requests in it, built page by page in plain Python, without the code under test."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from octavo_kernels.formats.binding import add, mix
from octavo_kernels.formats.place import place_of

NULL_PAGE = 0


@dataclass(frozen=True)
class Scenario:
    """R requests in one step: page storage, page records, and the step's tables, as the kernels take them."""

    page_size: int
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    tags: torch.Tensor
    places: torch.Tensor
    """Logical index and fill mark, as `formats.place` packs them."""
    writers: torch.Tensor
    block_table: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    positions: torch.Tensor
    token_rows: torch.Tensor
    nonces: torch.Tensor
    bindings: torch.Tensor
    keys: tuple[torch.Tensor, ...]
    """Per request, its whole context [context, kv_heads, D] as it is stored."""
    values: tuple[torch.Tensor, ...]
    verdict: torch.Tensor

    @property
    def fill(self) -> torch.Tensor:
        """The fill marks, [num_pages] uint8: a view of `places`, to read and to change."""
        return self.places.view(torch.uint8)[:: self.places.element_size()]

    @property
    def rows(self) -> int:
        """R."""
        return len(self.keys)

    def only(self, row: int) -> Self:
        """The same step with one of its requests alone."""
        start, end = int(self.query_start[row]), int(self.query_start[row + 1])
        return replace(
            self,
            block_table=self.block_table[row : row + 1],
            query_start=torch.tensor([0, end - start], dtype=torch.int32),
            context_lens=self.context_lens[row : row + 1],
            positions=self.positions[start:end],
            token_rows=torch.zeros(end - start, dtype=torch.int64),
            nonces=self.nonces[row : row + 1],
            bindings=self.bindings[row : row + 1],
            keys=self.keys[row : row + 1],
            values=self.values[row : row + 1],
            verdict=torch.zeros(1, dtype=torch.int32),
        )


def scenario(
    contexts: Sequence[int],
    new: Sequence[int],
    *,
    page_size: int = 16,
    kv_heads: int = 2,
    dim: int = 8,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> Scenario:
    """Requests with `contexts` tokens each, the last `new` of them in this step; pages in random places of the pool.

    All tokens are in the pages; the fill marks say what was there before the step.
    """
    generator = torch.Generator().manual_seed(seed)
    dice = random.Random(seed)
    held = [-(-context // page_size) for context in contexts]
    free = list(range(1, sum(held) + 4))
    dice.shuffle(free)
    num_pages = len(free) + 1
    shape = (num_pages, page_size, kv_heads, dim)
    # What pages held before: finite rubbish that must never be seen.
    k_pages, v_pages = torch.full(shape, 100.0).to(dtype), torch.full(shape, -100.0).to(dtype)
    tags, places, writers = (torch.full((num_pages,), value, dtype=torch.int32) for value in (1, 0, 0))
    tags[NULL_PAGE] = 0
    block_table = torch.zeros((len(contexts), max(held) + 1, 2), dtype=torch.int32)
    keys, values, nonces, bindings = [], [], [], []
    for row, context in enumerate(contexts):
        nonce, binding = dice.getrandbits(31) | 1, 0
        key = torch.randn((context, kv_heads, dim), generator=generator).to(dtype).float()
        value = torch.randn((context, kv_heads, dim), generator=generator).to(dtype).float()
        before = context - new[row]
        for index in range(held[row]):
            page, tag = free.pop(), 2 * dice.randrange(1, 1000)
            tokens = slice(index * page_size, min(context, (index + 1) * page_size))
            count = tokens.stop - tokens.start
            k_pages[page, :count], v_pages[page, :count] = key[tokens].to(dtype), value[tokens].to(dtype)
            tags[page], writers[page] = tag, nonce
            places[page] = place_of(index, max(0, min(page_size, before - tokens.start)))
            block_table[row, index] = torch.tensor([page, tag])
            binding = add(binding, mix(nonce, index, page, tag))
        keys.append(key)
        values.append(value)
        nonces.append(nonce)
        bindings.append(binding)
    starts = [0]
    for count in new:
        starts.append(starts[-1] + count)
    return Scenario(
        page_size=page_size,
        k_pages=k_pages,
        v_pages=v_pages,
        tags=tags,
        places=places,
        writers=writers,
        block_table=block_table,
        query_start=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        positions=torch.cat([torch.arange(c - n, c) for c, n in zip(contexts, new, strict=True)]),
        token_rows=torch.repeat_interleave(torch.arange(len(contexts)), torch.tensor(new)),
        nonces=torch.tensor(nonces, dtype=torch.int32),
        bindings=torch.tensor(bindings, dtype=torch.int64),
        keys=tuple(keys),
        values=tuple(values),
        verdict=torch.zeros(len(contexts), dtype=torch.int32),
    )
