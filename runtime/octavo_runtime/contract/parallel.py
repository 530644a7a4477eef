"""How one replica's ranks divide a model: heads, KV heads, experts and vocabulary.

Rules (DESIGN.md section 6): attention heads divide by the number of ranks; with more ranks than KV heads each KV head
is replicated, so KV bytes per GPU stop falling; whole experts per rank; no split cuts a quantisation group; the
vocabulary is padded. MLA rows are replicated on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_runtime.contract.facts import AttentionKind, ModelFacts
from octavo_runtime.contract.refused import Refused

VOCAB_ALIGNMENT = 64
"""Rows that each rank's slice of the vocabulary is padded to, so that output-head tiles are whole."""

BUNDLED_RUNTIME_WORLD_SIZES = frozenset({1})
"""Tensor-parallel sizes that the runtime of this version loads and runs; it refuses every other one when it starts, so
the planner must not choose one. The layouts below are for any size: what divides is a fact about the model."""


class ParallelLayoutError(ValueError):
    """A model cannot be divided over this many ranks; the message names the figure that does not divide."""


@dataclass(frozen=True)
class ParallelLayout:
    """One rank's share. Ranks are equal; `experts_per_rank` is zero for a dense model."""

    world_size: int
    heads_per_rank: int
    kv_heads_per_rank: int
    kv_head_replicas: int
    experts_per_rank: int
    vocab_per_rank: int

    @classmethod
    def of(cls, facts: ModelFacts, world_size: int) -> ParallelLayout:
        """Divide `facts` over `world_size` ranks; raises ParallelLayoutError naming what does not divide."""
        if world_size < 1:
            raise ParallelLayoutError(f"tensor-parallel size must be at least 1, got {world_size}")
        attention = facts.attention
        if attention.heads % world_size:
            raise ParallelLayoutError(f"{attention.heads} attention heads do not divide by {world_size} ranks")
        kv_heads, replicas = _kv_split(facts, world_size)
        experts = 0
        if facts.experts is not None:
            if facts.experts.count % world_size:
                raise ParallelLayoutError(f"{facts.experts.count} experts do not divide by {world_size} ranks")
            experts = facts.experts.count // world_size
        step = VOCAB_ALIGNMENT * world_size
        padded = -(-facts.vocab_size // step) * step
        return cls(
            world_size=world_size,
            heads_per_rank=attention.heads // world_size,
            kv_heads_per_rank=kv_heads,
            kv_head_replicas=replicas,
            experts_per_rank=experts,
            vocab_per_rank=padded // world_size,
        )


def _kv_split(facts: ModelFacts, world_size: int) -> tuple[int, int]:
    """(KV heads on each rank, ranks that hold the same KV head)."""
    if facts.attention.kind is AttentionKind.MLA:
        return 1, world_size
    kv_heads = facts.attention.kv_heads
    if kv_heads % world_size == 0:
        return kv_heads // world_size, 1
    if world_size % kv_heads == 0:
        return 1, world_size // kv_heads
    raise ParallelLayoutError(f"{kv_heads} KV heads neither divide by {world_size} ranks nor divide them")


def feasible_world_sizes(facts: ModelFacts, limit: int) -> tuple[int, ...]:
    """All tensor-parallel sizes from 1 to `limit` that this model can be divided by, ascending."""
    sizes: list[int] = []
    for size in range(1, limit + 1):
        try:
            ParallelLayout.of(facts, size)
        except ParallelLayoutError:
            continue
        sizes.append(size)
    return tuple(sizes)


def require_bundled_world_size(world_size: int) -> None:
    """Raise Refused unless the bundled runtime runs on this many ranks; loader and executor both ask."""
    if world_size not in BUNDLED_RUNTIME_WORLD_SIZES:
        possible = ", ".join(str(size) for size in sorted(BUNDLED_RUNTIME_WORLD_SIZES))
        raise Refused(
            "TensorParallelUnsupported",
            f"--tensor-parallel-size {world_size}: this version runs one rank per replica; use {possible}",
        )
