"""Latent attention equals torch's own attention with one KV head whose values are the first part of its keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.attention_tiles import KEY_TILE
from octavo_kernels.reference.mla_attention import mla_attention
from tests.kernels.close import assert_close
from tests.kernels.paged import Scenario, scenario

FP8 = torch.float8_e4m3fn
ONE = torch.ones(())
TOLERANCE = 3e-6
"""Float32 attention over values of size one."""


def random_query(step: Scenario, heads: int, seed: int = 1) -> torch.Tensor:
    shape = (step.positions.shape[0], heads, step.k_pages.shape[3])
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attend(step: Scenario, query: torch.Tensor, latent_dim: int, scale: torch.Tensor = ONE) -> torch.Tensor:
    return mla_attention(
        query,
        pages=step.k_pages[:, :, 0],
        scale=scale,
        latent_dim=latent_dim,
        block_table=step.block_table,
        query_start=step.query_start,
        context_lens=step.context_lens,
        positions=step.positions,
        softmax_scale=query.shape[2] ** -0.5,
    )


def torch_attention(step: Scenario, query: torch.Tensor, latent_dim: int) -> torch.Tensor:
    """Row by row through scaled_dot_product_attention; the rows in `step.keys` count as scaled already."""
    rows = []
    for row in range(step.rows):
        tokens = slice(int(step.query_start[row]), int(step.query_start[row + 1]))
        key = step.keys[row][:, 0].expand(query.shape[1], -1, -1)
        seen = torch.arange(key.shape[1]) <= step.positions[tokens, None]
        own = query[tokens].transpose(0, 1)
        attended = F.scaled_dot_product_attention(own, key, key[..., :latent_dim], attn_mask=seen)
        rows.append(attended.transpose(0, 1))
    return torch.cat(rows)


def latent_step(
    contexts: list[int], new: list[int], *, dim: int = 12, page_size: int = 16, fp8: bool = False
) -> Scenario:
    return scenario(contexts, new, page_size=page_size, kv_heads=1, dim=dim, dtype=FP8 if fp8 else torch.bfloat16)


@settings(deadline=None, max_examples=20)
@given(
    contexts=st.lists(st.integers(1, 140), min_size=1, max_size=3),
    share=st.floats(0.01, 1.0),
    page_size=st.sampled_from([1, 3, 16, 64]),
    latent_dim=st.integers(1, 9),
    rope_dim=st.integers(0, 5),
    heads=st.sampled_from([1, 3, 16, 20]),
    fp8=st.booleans(),
)
def test_it_equals_torch_attention(
    contexts: list[int], share: float, page_size: int, latent_dim: int, rope_dim: int, heads: int, fp8: bool
) -> None:
    new = [max(1, int(context * share)) for context in contexts]
    step = latent_step(contexts, new, dim=latent_dim + rope_dim, page_size=page_size, fp8=fp8)
    query = random_query(step, heads)
    assert_close(attend(step, query, latent_dim), torch_attention(step, query, latent_dim), within=TOLERANCE)


@pytest.mark.parametrize("fp8", [False, True])
def test_rows_of_512_and_64_with_many_heads(fp8: bool) -> None:
    step = latent_step([1, KEY_TILE + 1, 63], [1, 1, 2], dim=576, page_size=64, fp8=fp8)
    query = random_query(step, 24)
    assert_close(attend(step, query, 512), torch_attention(step, query, 512), within=TOLERANCE)


def test_thousands_of_keys() -> None:
    step = latent_step([3001, 1], [2, 1], page_size=64)
    query = random_query(step, 8)
    assert_close(attend(step, query, 8), torch_attention(step, query, 8), within=TOLERANCE)


@pytest.mark.parametrize("per_token", [False, True])
def test_the_scale_multiplies_keys_and_values(per_token: bool) -> None:
    step = latent_step([40, 7], [3, 7], fp8=True)
    factors = torch.rand(step.k_pages.shape[:2], generator=torch.Generator().manual_seed(5)) + 0.5
    scale = factors if per_token else torch.tensor(0.25)
    scaled = []
    for row, key in enumerate(step.keys):
        places = torch.arange(key.shape[0])
        pages = step.block_table[row, places // step.page_size, 0].long()
        scaled.append(key * (factors[pages, places % step.page_size] if per_token else scale)[..., None, None])
    query = random_query(step, 4)
    expected = torch_attention(replace(step, keys=tuple(scaled)), query, 8)
    assert_close(attend(step, query, 8, scale), expected, within=2 * TOLERANCE)


def test_a_token_gets_the_same_bits_alone_and_batched() -> None:
    contexts = [1, 17, 128, 129, 200]
    whole = latent_step(contexts, contexts, dim=80, fp8=True)
    query = random_query(whole, 5)
    together = attend(whole, query, 64)
    for row in range(len(contexts)):
        own = slice(int(whole.query_start[row]), int(whole.query_start[row + 1]))
        assert torch.equal(attend(whole.only(row), query[own], 64), together[own])
        last = replace(
            whole.only(row),
            positions=whole.positions[own][-1:],
            query_start=torch.tensor([0, 1], dtype=torch.int32),
        )
        assert torch.equal(attend(last, query[own][-1:], 64), together[own][-1:])


def test_a_value_that_is_no_number_shows_only_where_it_is_seen() -> None:
    step = latent_step([20], [20])
    query = random_query(step, 3)
    clean = attend(step, query, 8)
    step.k_pages[step.block_table[0, 0, 0].long(), 9, 0, 10] = torch.nan
    spoilt = attend(step, query, 8)
    assert torch.equal(spoilt[:9], clean[:9])
    assert spoilt[9:].isnan().all()


def test_an_empty_batch_is_answered_and_wrong_inputs_are_named() -> None:
    step = latent_step([20], [0])
    assert attend(step, random_query(step, 2), 8).shape == (0, 2, 8)
    step = latent_step([20], [2])
    query = random_query(step, 2)
    with pytest.raises(KernelInputError, match="latent_dim is 13, needed 1 to 12"):
        attend(step, query, 13)
    with pytest.raises(KernelInputError, match=r"pages has shape .* needed \[any, any, 11\]"):
        attend(step, query[..., :11], 8)
    with pytest.raises(KernelInputError, match=r"scale is per token, is torch\.bfloat16"):
        attend(step, query, 8, torch.ones(step.k_pages.shape[:2]))
    with pytest.raises(KernelInputError, match=r"scale has shape \[3\]"):
        attend(step, query, 8, torch.ones(3))
