"""Latent attention in C equals the reference on every instruction set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.mla_attention import mla_attention
from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference.mla_attention import mla_attention as reference
from tests.kernels.close import assert_close
from tests.kernels.paged import Scenario, scenario

pytestmark = pytest.mark.usefixtures("each_variant")

FP8 = torch.float8_e4m3fn
TOLERANCE = 5e-6
"""Float32 attention over values of size one."""


def random_query(step: Scenario, heads: int) -> torch.Tensor:
    shape = (step.positions.shape[0], heads, step.k_pages.shape[3])
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def arguments(step: Scenario, latent_dim: int, *, scale_per_token: bool = False) -> dict[str, Any]:
    shape = step.k_pages.shape[:2] if scale_per_token else ()
    return {
        "pages": step.k_pages[:, :, 0],
        "scale": torch.rand(shape, generator=torch.Generator().manual_seed(2)) + 0.5,
        "latent_dim": latent_dim,
        "block_table": step.block_table,
        "query_start": step.query_start,
        "context_lens": step.context_lens,
        "positions": step.positions,
        "softmax_scale": step.k_pages.shape[3] ** -0.5,
    }


@settings(deadline=None, max_examples=10)
@given(
    contexts=st.lists(st.integers(1, 140), min_size=1, max_size=3),
    share=st.floats(0.0, 1.0),
    page_size=st.sampled_from([1, 3, 16, 64]),
    dims=st.tuples(st.sampled_from([1, 6, 33, 64, 70]), st.sampled_from([0, 5, 64])),
    heads=st.sampled_from([1, 3, 16, 80]),
    kind=st.sampled_from(["bf16", "fp8", "fp8 per token"]),
)
def test_it_equals_the_reference(
    contexts: list[int], share: float, page_size: int, dims: tuple[int, int], heads: int, kind: str
) -> None:
    new = [int(context * share) for context in contexts]
    dtype = torch.bfloat16 if kind == "bf16" else FP8
    step = scenario(contexts, new, page_size=page_size, kv_heads=1, dim=sum(dims), dtype=dtype)
    query, given_arguments = random_query(step, heads), arguments(step, dims[0], scale_per_token=kind[4:] != "")
    assert_close(mla_attention(query, **given_arguments), reference(query, **given_arguments), within=TOLERANCE)


def test_rows_as_models_have_them() -> None:
    step = scenario([65, 1030], [1, 1], page_size=64, kv_heads=1, dim=576, dtype=FP8)
    query = random_query(step, 64)
    assert_close(
        mla_attention(query, **arguments(step, 512)), reference(query, **arguments(step, 512)), within=TOLERANCE
    )


@pytest.mark.usefixtures("two_threads")
def test_the_same_bits_alone_and_on_two_threads() -> None:
    step = scenario([1500, 70], [1, 70], kv_heads=1, dim=24, dtype=FP8)
    query = random_query(step, 12)
    by_two = mla_attention(query, **arguments(step, 16))
    torch.set_num_threads(1)
    alone = [
        mla_attention(query[:1], **arguments(step.only(0), 16)),
        mla_attention(query[1:], **arguments(step.only(1), 16)),
    ]
    assert torch.equal(torch.cat(alone), by_two)


def test_inputs_that_cannot_be_taken_are_named() -> None:
    step = scenario([20], [1], kv_heads=1)
    query, good = random_query(step, 2), arguments(step, 6)
    with pytest.raises(KernelInputError, match="latent_dim is 9, needed 1 to 8"):
        mla_attention(query, **good | {"latent_dim": 9})
    with pytest.raises(KernelInputError, match="query is not contiguous"):
        mla_attention(query.repeat(1, 1, 2)[..., ::2], **good)
    with pytest.raises(KernelInputError, match="pages is not contiguous"):
        mla_attention(query, **good | {"pages": scenario([20], [1]).k_pages[:, :, 0]})
    with pytest.raises(KernelInputError, match=r"scale is torch\.float64"):
        mla_attention(query, **good | {"scale": torch.ones((), dtype=torch.float64)})
