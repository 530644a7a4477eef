"""Latent attention in Triton equals the reference, up to the bfloat16 operands of its products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.verdict import Finding, findings_of
from octavo_kernels.reference.mla_attention import mla_attention as reference
from octavo_kernels.triton import attention_tiles
from octavo_kernels.triton.mla_attention import mla_attention
from tests.kernels.close import assert_close
from tests.kernels.paged import Scenario, scenario

FP8 = torch.float8_e4m3fn
ROUNDING = 0.02
"""As in test_paged_attention: only the shares are rounded."""


@dataclass(frozen=True)
class Step:
    """A scenario whose keys serve as latent rows."""

    pool: Scenario
    query: torch.Tensor
    scale: torch.Tensor
    latent_dim: int

    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            "pages": self.pool.k_pages.squeeze(2),
            "scale": self.scale,
            "block_table": self.pool.block_table,
            "query_start": self.pool.query_start,
            "context_lens": self.pool.context_lens,
            "positions": self.pool.positions,
        }

    def expected(self) -> torch.Tensor:
        return reference(self.query, **self.tensors(), latent_dim=self.latent_dim, softmax_scale=0.2)

    def attend(self) -> torch.Tensor:
        return mla_attention(self.query, **self.tensors(), latent_dim=self.latent_dim, softmax_scale=0.2)


def step_of(
    contexts: Sequence[int],
    new: Sequence[int],
    *,
    heads: int = 4,
    page_size: int = 16,
    latent: int = 32,
    rope: int = 16,
    dtype: torch.dtype = FP8,
) -> Step:
    pool = scenario(contexts, new, page_size=page_size, kv_heads=1, dim=latent + rope, dtype=dtype)
    generator = torch.Generator().manual_seed(sum(contexts))
    query = torch.randn((sum(new), heads, latent + rope), generator=generator).bfloat16().float()
    return Step(pool, query, torch.ones(()), latent)


@settings(deadline=None, max_examples=6)
@given(
    contexts=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    share=st.sampled_from([0.0, 0.1, 0.2]),
    heads=st.sampled_from([1, 5, 20]),
    page_size=st.sampled_from([3, 16, 64]),
    sizes=st.sampled_from([(16, 8), (48, 16), (64, 24)]),
    dtype=st.sampled_from([torch.bfloat16, FP8]),
)
def test_any_shape_equals_the_reference(
    contexts: list[int], share: float, heads: int, page_size: int, sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    new = [max(1, int(context * share)) for context in contexts]
    step = step_of(contexts, new, heads=heads, page_size=page_size, latent=sizes[0], rope=sizes[1], dtype=dtype)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize("new", [1, 2])
def test_the_published_row_of_512_and_64_equals_the_reference(new: int) -> None:
    step = step_of([40, 33], [new, 1], heads=16, latent=512, rope=64)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize("context", [1, 15, 16, 17, 32, 33, 97])
def test_split_contexts_equal_the_reference_beside_boundaries(context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tiles, "KEYS_PER_SPLIT", 16)
    step = step_of([context, 70], [1, 1])
    assert_close(step.attend(), step.expected(), within=ROUNDING)


def test_a_context_of_thousands_equals_the_reference() -> None:
    step = step_of([2100], [1], page_size=64, dtype=torch.bfloat16)
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize("new", [1, 3])
def test_scales_of_the_tensor_and_of_each_token_equal_the_reference(new: int) -> None:
    step = step_of([40, 20], [new, 1])
    for scale in (torch.tensor(0.5), torch.rand(step.pool.k_pages.shape[:2]) + 0.5):
        scaled = replace(step, scale=scale)
        assert_close(scaled.attend(), scaled.expected(), within=ROUNDING)


def test_rows_without_tokens_change_nothing_for_the_others() -> None:
    step = step_of([20, 30], [0, 2])
    assert_close(step.attend(), step.expected(), within=ROUNDING)


def test_a_nan_in_a_latent_row_spoils_every_head_that_sees_it() -> None:
    step = step_of([40, 20], [1, 1])
    step.pool.k_pages.view(torch.uint8)[step.pool.block_table[0, 0, 0], 3, 0, 5] = 0x7F
    out, expected = step.attend(), step.expected()
    assert torch.equal(out.isnan(), expected.isnan())
    assert out[0].isnan().all()
    assert_close(out[1], expected[1], within=ROUNDING)


@pytest.mark.parametrize(("latent", "rope"), [(24, 4), (16, 5), (20, 16)])
def test_what_lies_behind_a_row_of_an_odd_size_is_not_read(latent: int, rope: int) -> None:
    step = step_of([5, 21], [1, 3], latent=latent, rope=rope)
    for row, context in enumerate((5, 21)):
        page = step.pool.block_table[row, context // 16, 0]
        step.pool.k_pages.view(torch.uint8)[page, context % 16 :] = 0x7F
    assert_close(step.attend(), step.expected(), within=ROUNDING)


@pytest.mark.parametrize("place", [0, 36, 39])
def test_a_nan_in_a_latent_row_spoils_no_token_of_a_chunk_that_does_not_see_it(place: int) -> None:
    step = step_of([40], [6])
    step.pool.k_pages.view(torch.uint8)[step.pool.block_table[0, place // 16, 0], place % 16, 0, 5] = 0x7F
    out, expected = step.attend(), step.expected()
    sees = step.pool.positions >= place
    assert out[sees].isnan().all()
    assert_close(out[~sees], expected[~sees], within=ROUNDING)


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("page", [-1, 10**6])
def test_a_page_outside_the_pool_reads_the_null_page(page: int, new: int) -> None:
    step = step_of([40], [new])
    step.pool.block_table[0, 1, 0] = page
    # The NULL page of these scenarios holds values of 100.
    assert_close(step.attend(), step.expected(), within=100 * ROUNDING)


@pytest.mark.parametrize("new", [1, 3])
def test_the_fused_check_marks_and_blanks_a_faulty_row_alone(new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tiles, "KEYS_PER_SPLIT", 16)
    step = step_of([40, 30], [new, 1])
    expected = step.expected()
    step.pool.tags[step.pool.block_table[0, 1, 0]] += 2
    out = mla_attention(
        step.query,
        **step.tensors(),
        latent_dim=step.latent_dim,
        softmax_scale=0.2,
        page_tags=step.pool.tags,
        verdict=step.pool.verdict,
    )
    assert not out[:new].any()
    assert_close(out[new:], expected[new:], within=ROUNDING)
    assert findings_of(int(step.pool.verdict[0]), 1) == Finding.TAG
    assert int(step.pool.verdict[1]) == 0


def test_wrong_inputs_are_refused_by_name() -> None:
    step = step_of([20], [1])
    for tensors, query, latent, message in (
        ({"pages": step.pool.k_pages.squeeze(2).float()}, step.query, 32, "pages is torch.float32"),
        ({"scale": torch.ones(3, 3)}, step.query, 32, "scale has shape"),
        ({"block_table": step.pool.block_table.long()}, step.query, 32, "block_table is torch.int64"),
        ({}, step.query.double(), 32, "query is torch.float64"),
        ({}, step.query[..., :40].contiguous(), 32, "query has shape"),
        ({}, step.query, 48, "latent_dim is 48"),
    ):
        with pytest.raises(KernelInputError, match=message):
            mla_attention(query, **step.tensors() | tensors, latent_dim=latent, softmax_scale=1.0)


def test_an_empty_batch_is_answered_without_a_launch() -> None:
    step = step_of([20], [1])
    tensors = step.tensors() | {"positions": torch.zeros(0, dtype=torch.int64)}
    assert mla_attention(step.query[:0], **tensors, latent_dim=32, softmax_scale=1.0).shape == (0, 4, 32)
