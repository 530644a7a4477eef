"""How ranks divide a model, over whatever shapes there may be."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo_runtime.contract.facts import AttentionKind, ExpertFacts, ModelFacts
from octavo_runtime.contract.parallel import (
    VOCAB_ALIGNMENT,
    ParallelLayout,
    ParallelLayoutError,
    feasible_world_sizes,
)
from tests.contract.models import KIMI_K26, PUBLISHED, QWEN3_30B, gqa


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """A GQA model with sensible but arbitrary shapes."""
    kv_heads = draw(st.integers(1, 16))
    experts = draw(st.none() | st.builds(_experts, st.integers(1, 512)))
    return QWEN3_30B.model_copy(
        update={
            "attention": gqa(kv_heads * draw(st.integers(1, 16)), kv_heads),
            "experts": experts,
            "vocab_size": draw(st.integers(1, 300_000)),
        }
    )


def _experts(count: int) -> ExpertFacts:
    return ExpertFacts(count=count, per_token=1, intermediate_size=64, layers=1)


@given(facts=models(), world=st.integers(1, 64))
def test_a_layout_hands_out_everything_exactly_once_or_is_refused(facts: ModelFacts, world: int) -> None:
    if world not in feasible_world_sizes(facts, world):
        with pytest.raises(ParallelLayoutError, match=str(world)):
            ParallelLayout.of(facts, world)
        return
    layout = ParallelLayout.of(facts, world)
    attention = facts.attention
    assert layout.heads_per_rank * world == attention.heads
    assert layout.kv_heads_per_rank * world == attention.kv_heads * layout.kv_head_replicas
    assert layout.heads_per_rank % layout.kv_heads_per_rank == 0
    if facts.experts is not None:
        assert layout.experts_per_rank * world == facts.experts.count
    else:
        assert layout.experts_per_rank == 0


@given(facts=models(), world=st.integers(1, 64))
def test_the_vocabulary_is_padded_to_whole_tiles_and_by_less_than_one_tile_a_rank(
    facts: ModelFacts, world: int
) -> None:
    assume(world in feasible_world_sizes(facts, 64))
    padded = ParallelLayout.of(facts, world).vocab_per_rank * world
    assert ParallelLayout.of(facts, world).vocab_per_rank % VOCAB_ALIGNMENT == 0
    assert facts.vocab_size <= padded < facts.vocab_size + VOCAB_ALIGNMENT * world


@given(facts=models())
def test_one_rank_is_always_possible_and_feasible_sizes_are_exactly_those_that_work(facts: ModelFacts) -> None:
    sizes = feasible_world_sizes(facts, 32)
    assert sizes[0] == 1
    for size in range(1, 33):
        if size in sizes:
            ParallelLayout.of(facts, size)
        else:
            with pytest.raises(ParallelLayoutError):
                ParallelLayout.of(facts, size)


def test_more_ranks_than_kv_heads_replicate_them() -> None:
    assert [ParallelLayout.of(QWEN3_30B, tp).kv_head_replicas for tp in (1, 2, 4, 8, 16)] == [1, 1, 1, 2, 4]
    assert [ParallelLayout.of(QWEN3_30B, tp).kv_heads_per_rank for tp in (1, 2, 4, 8, 16)] == [4, 2, 1, 1, 1]


def test_mla_is_replicated_on_every_rank() -> None:
    layout = ParallelLayout.of(KIMI_K26, 8)
    assert KIMI_K26.attention.kind is AttentionKind.MLA
    assert (layout.kv_heads_per_rank, layout.kv_head_replicas) == (1, 8)


@pytest.mark.parametrize("facts", PUBLISHED, ids=lambda facts: facts.architecture)
def test_published_models_divide_by_the_usual_numbers_of_gpus(facts: ModelFacts) -> None:
    assert {1, 2, 4, 8} <= set(feasible_world_sizes(facts, 8))


@pytest.mark.parametrize(
    ("facts", "world", "what"),
    [
        (QWEN3_30B, 0, "at least 1, got 0"),
        (QWEN3_30B, -2, "at least 1, got -2"),
        (QWEN3_30B, 3, "32 attention heads do not divide by 3"),
        (QWEN3_30B.model_copy(update={"attention": gqa(36, 6)}), 4, "6 KV heads neither divide by 4 ranks"),
        (QWEN3_30B.model_copy(update={"experts": _experts(6)}), 4, "6 experts do not divide by 4"),
    ],
)
def test_the_figure_that_does_not_divide_is_named(facts: ModelFacts, world: int, what: str) -> None:
    with pytest.raises(ParallelLayoutError, match=what):
        ParallelLayout.of(facts, world)
