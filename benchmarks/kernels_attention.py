"""Decode attention over an FP8 cache in pages, against torch's attention over the same context gathered in float32.

Gathering is not counted: the other side gets its keys and values for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.kernels_arms import Arm, Times, take_turns
from octavo_kernels.cpu.paged_attention import paged_attention

HEADS, KV_HEADS, HEAD_DIM, CONTEXT, PAGE_SIZE = 32, 4, 128, 4096, 16
BATCH = 4


def measure(rounds: int, contexts: int) -> dict[str, Times]:
    """One request at a time, and a batch of four; `contexts` of them take turns."""
    arms: dict[str, Arm] = {}
    for rows, suffix in ((1, ""), (BATCH, "_batch")):
        arms[f"paged_fp8{suffix}"] = Arm(_paged(rows, contexts))
        arms[f"sdpa_fp32{suffix}"] = Arm(_gathered(rows, contexts))
    return take_turns(arms, rounds)


def _paged(rows: int, contexts: int) -> Callable[[int], torch.Tensor]:
    per_row = CONTEXT // PAGE_SIZE
    pages = 1 + rows * contexts * per_row
    shape = (pages, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    k_pages, v_pages = (torch.randn(shape).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.tensor(1.0)
    scattered = (torch.randperm(pages - 1) + 1).int().view(contexts, rows, per_row)
    tables = torch.stack((scattered, torch.zeros_like(scattered)), dim=-1)
    query = torch.randn(rows, HEADS, HEAD_DIM)
    starts = torch.arange(rows + 1, dtype=torch.int32)
    lengths, positions = torch.full((rows,), CONTEXT, dtype=torch.int32), torch.full((rows,), CONTEXT - 1)

    def decode(turn: int) -> torch.Tensor:
        return paged_attention(
            query,
            k_pages=k_pages,
            v_pages=v_pages,
            k_scale=scale,
            v_scale=scale,
            block_table=tables[turn % contexts],
            query_start=starts,
            context_lens=lengths,
            positions=positions,
            softmax_scale=HEAD_DIM**-0.5,
        )

    return decode


def _gathered(rows: int, contexts: int) -> Callable[[int], torch.Tensor]:
    keys, values = (torch.randn(contexts, rows, KV_HEADS, CONTEXT, HEAD_DIM) for _ in range(2))
    # The heads of a group as query rows of their KV head: the same result as enable_gqa, in a third of its time.
    query = torch.randn(rows, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    return lambda turn: F.scaled_dot_product_attention(query, keys[turn % contexts], values[turn % contexts])
