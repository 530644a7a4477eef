"""KV write: what is stored where, and every store that is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.place import place_of
from octavo_kernels.formats.verdict import UNCONCLUDED, Finding, findings_of
from octavo_kernels.reference.kv_write import kv_write, mla_write
from tests.kernels.paged import Scenario, scenario

ONE = torch.ones(())
FP8 = torch.float8_e4m3fn
WRITER_SHARED = -1


def new_rows(step: Scenario) -> tuple[torch.Tensor, torch.Tensor]:
    """The scenario's own keys and values of the step's tokens, which its pages hold already."""
    pairs = zip(step.token_rows.tolist(), step.positions.tolist(), strict=True)
    places = list(pairs)
    return (
        torch.stack([step.keys[row][position] for row, position in places]),
        torch.stack([step.values[row][position] for row, position in places]),
    )


def write(
    step: Scenario,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: torch.Tensor = ONE,
    last_layer: bool = True,
) -> None:
    kv_write(
        key,
        value,
        k_pages=step.k_pages,
        v_pages=step.v_pages,
        k_scale=scale,
        v_scale=scale,
        block_table=step.block_table,
        token_rows=step.token_rows,
        positions=step.positions,
        nonces=step.nonces,
        page_tags=step.tags,
        page_writers=step.writers,
        page_places=step.places,
        verdict=step.verdict,
        last_layer=last_layer,
    )


def bytes_of(pages: torch.Tensor) -> torch.Tensor:
    return pages.view(torch.uint8).clone()


def emptied(step: Scenario) -> Scenario:
    """The same step before its tokens were stored: their slots hold rubbish."""
    for row, position in zip(step.token_rows.tolist(), step.positions.tolist(), strict=True):
        page = int(step.block_table[row, position // step.page_size, 0])
        for pages in (step.k_pages, step.v_pages):
            pages[page, position % step.page_size] = 7.0
    return step


@settings(deadline=None, max_examples=40)
@given(
    contexts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    page_size=st.sampled_from([1, 3, 16, 64]),
    dtype=st.sampled_from([torch.bfloat16, FP8]),
    share=st.floats(0.01, 1.0),
)
def test_new_tokens_land_in_their_slots_and_nothing_else_changes(
    contexts: list[int], page_size: int, dtype: torch.dtype, share: float
) -> None:
    new = [max(1, int(context * share)) for context in contexts]
    expected = scenario(contexts, new, page_size=page_size, dtype=dtype)
    step = emptied(scenario(contexts, new, page_size=page_size, dtype=dtype))
    write(step, *new_rows(expected))
    assert torch.equal(bytes_of(step.k_pages), bytes_of(expected.k_pages))
    assert torch.equal(bytes_of(step.v_pages), bytes_of(expected.v_pages))
    assert step.verdict.tolist() == [0] * len(contexts)


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_chunk_that_ends_beside_a_page_boundary_fills_exactly_its_pages(offset: int) -> None:
    step = scenario([32 + offset], [20], page_size=16)
    write(step, *new_rows(step))
    pages = step.block_table[0, :3, 0].tolist()
    filled = [16, 16 + min(0, offset), max(0, offset)]
    places = [place_of(index, fill) for index, fill in enumerate(filled)]
    places[2] *= offset > 0
    assert step.places[pages].tolist() == places


def test_only_the_last_layer_advances_the_fill_mark() -> None:
    step = scenario([20], [5])
    before = step.fill.clone()
    write(step, *new_rows(step), last_layer=False)
    assert torch.equal(step.fill, before)
    write(step, *new_rows(step), last_layer=True)
    assert not torch.equal(step.fill, before)


def test_values_are_divided_by_the_scale_and_saturate() -> None:
    step = scenario([3], [3], dtype=FP8)
    key = torch.full((3, 2, 8), 10.0)
    key[1] = 1e6
    write(step, key, -key, scale=torch.tensor(4.0))
    page = int(step.block_table[0, 0, 0])
    assert step.k_pages[page, :3, 0, 0].float().tolist() == [2.5, 448.0, 2.5]
    assert step.v_pages[page, :3, 0, 0].float().tolist() == [-2.5, -448.0, -2.5]


def refuse(step: Scenario, finding: Finding) -> None:
    """Assert that row 0 stores nothing and is marked, and that row 1 is stored as if alone."""
    page = int(step.block_table[1, 0, 0])
    before = bytes_of(step.k_pages)
    fill = step.fill.clone()
    key, value = new_rows(step)
    write(step, key + 1, value + 1)
    changed = (bytes_of(step.k_pages) != before).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert changed == [page]
    assert torch.equal(step.k_pages[page, 9].float(), (key[-1] + 1).bfloat16().float())
    assert [i for i in range(len(fill)) if fill[i] != step.fill[i]] == [page]
    assert findings_of(int(step.verdict[0]), 1) == finding
    assert int(step.verdict[0]) < 0
    assert int(step.verdict[1]) == 0


def two_rows() -> Scenario:
    return scenario([10, 10], [2, 1])


def test_a_page_of_a_newer_generation_is_not_written() -> None:
    step = two_rows()
    step.tags[step.block_table[0, 0, 0]] += 2
    refuse(step, Finding.TAG)


def test_a_freed_page_is_not_written() -> None:
    step = two_rows()
    page = step.block_table[0, 0, 0]
    step.tags[page] += 1
    step.writers[page] = 0
    refuse(step, Finding.TAG | Finding.WRITER)


def test_a_page_that_another_request_writes_is_not_written() -> None:
    step = two_rows()
    step.writers[step.block_table[0, 0, 0]] = step.nonces[1]
    refuse(step, Finding.WRITER)


def test_a_shared_page_is_read_only() -> None:
    step = two_rows()
    step.writers[step.block_table[0, 0, 0]] = WRITER_SHARED
    refuse(step, Finding.WRITER)


@pytest.mark.parametrize("page", [-1, 10**6, -(2**31)])
def test_a_page_outside_the_pool_is_not_written_nor_the_null_page_in_its_place(page: int) -> None:
    step = two_rows()
    step.block_table[0, 0, 0] = page
    refuse(step, Finding.RANGE | Finding.TAG | Finding.WRITER)


def test_the_null_page_is_never_written() -> None:
    step = two_rows()
    step.block_table[0, 0] = 0
    refuse(step, Finding.RANGE | Finding.WRITER)


def test_a_slot_below_the_fill_mark_is_not_overwritten() -> None:
    step = two_rows()
    step.fill[step.block_table[0, 0, 0]] = 10
    refuse(step, Finding.SLOT)


@pytest.mark.parametrize("position", [-1, 10**6])
def test_a_position_outside_the_row_is_not_stored(position: int) -> None:
    step = two_rows()
    step.positions[:2] = position
    key, value = new_rows(scenario([10, 10], [2, 1]))
    before = bytes_of(step.k_pages)
    write(step, key, value)
    assert torch.equal(bytes_of(step.k_pages), before)
    assert Finding.SLOT in findings_of(int(step.verdict[0]), 1)


def test_a_mark_keeps_what_was_found_before() -> None:
    step = two_rows()
    step.verdict[0] = UNCONCLUDED | int(Finding.FILL)
    step.writers[step.block_table[0, 0, 0]] = WRITER_SHARED
    write(step, *new_rows(step))
    assert findings_of(int(step.verdict[0]), 1) == Finding.FILL | Finding.WRITER


def test_no_mark_can_be_mistaken_for_a_step_number() -> None:
    step = two_rows()
    step.writers[step.block_table[0, 0, 0]] = WRITER_SHARED
    write(step, *new_rows(step))
    assert int(step.verdict[0]) < 0


def test_a_page_larger_than_its_fill_mark_counts_is_refused() -> None:
    step = scenario([10], [1], page_size=256)
    with pytest.raises(KernelInputError, match="page_size is 256"):
        write(step, *new_rows(step))


def test_wrong_shapes_are_named() -> None:
    step = two_rows()
    key, value = new_rows(step)
    with pytest.raises(KernelInputError, match=r"key has shape \[2, 2, 8\], needed \[3, 2, 8\]"):
        write(step, key[:2], value)
    with pytest.raises(KernelInputError, match=r"key is torch\.float64"):
        write(step, key.double(), value)


def scaled_step(dtype: torch.dtype = FP8) -> Scenario:
    return scenario([20, 5], [9, 5], kv_heads=3, dtype=dtype)


def test_a_scale_per_head_divides_each_head_by_its_own() -> None:
    step = scaled_step()
    key = torch.ones((14, 3, 8)) * 8
    write(step, key, key, scale=torch.tensor([1.0, 2.0, 4.0]))
    assert step.k_pages[step.block_table[1, 0, 0], 4].float()[:, 0].tolist() == [8.0, 4.0, 2.0]


def test_a_scale_per_token_and_head_is_found_stored_and_undone_by_reading() -> None:
    step = scaled_step()
    key = torch.randn((14, 3, 8), generator=torch.Generator().manual_seed(1)) * 1000
    key[3, 1] = 0
    scale = torch.full(step.k_pages.shape[:3], -1.0)
    write(step, key, key, scale=scale)
    pages = step.block_table[step.token_rows, step.positions // 16, 0].long()
    slots = step.positions % 16
    expected = key.abs().amax(-1) / 448
    expected[3, 1] = 1.0
    assert torch.equal(scale[pages, slots], expected)
    assert int((scale != -1).sum()) == expected.numel()
    read = step.k_pages.float()[pages, slots] * scale[pages, slots][..., None]
    assert ((read - key).abs() <= key.abs() * 2.0**-4 + expected[..., None] * 2.0**-10).all()


def test_elements_that_are_no_numbers_do_not_spoil_their_neighbours() -> None:
    step = scenario([2], [2], kv_heads=1, dim=4, dtype=FP8)
    key = torch.tensor([[[torch.nan, 448.0, -1.0, 0.0]], [[-torch.inf, 1.0, 0.0, 3.0]]])
    scale = torch.zeros(step.k_pages.shape[:3])
    write(step, key, key, scale=scale)
    page = int(step.block_table[0, 0, 0])
    first, second = step.k_pages[page, :2, 0].float()
    assert first.isnan().tolist() == [True, False, False, False]
    assert first[1:].tolist() == [448.0, -1.0, 0.0]
    assert second.tolist() == [-448.0, 0.0, 0.0, 0.0]
    assert scale[page, :2, 0].tolist() == [1.0, torch.finfo(torch.float32).max / 448]


def test_a_refused_store_leaves_the_scale_alone() -> None:
    step = scaled_step()
    step.writers[step.block_table[0, :2, 0].long()] = WRITER_SHARED
    scale = torch.full(step.k_pages.shape[:3], -1.0)
    write(step, torch.ones((14, 3, 8)), torch.ones((14, 3, 8)), scale=scale)
    changed = (scale != -1).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert changed == [int(step.block_table[1, 0, 0])]


@settings(deadline=None, max_examples=20)
@given(
    contexts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    page_size=st.sampled_from([1, 3, 16]),
    per_token=st.booleans(),
    refused=st.booleans(),
)
def test_latent_rows_are_stored_as_keys_of_one_head_are(
    contexts: list[int], page_size: int, per_token: bool, refused: bool
) -> None:
    steps = [scenario(contexts, contexts, page_size=page_size, kv_heads=1, dtype=FP8) for _ in range(2)]
    scales = [torch.full(steps[0].k_pages.shape[:3], 2.0) if per_token else torch.tensor(2.0) for _ in steps]
    key, value = new_rows(steps[0])
    for step in steps:
        if refused:
            step.tags[step.block_table[0, 0, 0]] += 1
    write(steps[0], key, value, scale=scales[0])
    step = steps[1]
    mla_write(
        key[:, 0],
        pages=step.k_pages[:, :, 0],
        scale=scales[1][..., 0] if per_token else scales[1],
        block_table=step.block_table,
        token_rows=step.token_rows,
        positions=step.positions,
        nonces=step.nonces,
        page_tags=step.tags,
        page_writers=step.writers,
        page_places=step.places,
        verdict=step.verdict,
        last_layer=True,
    )
    assert torch.equal(bytes_of(steps[0].k_pages), bytes_of(step.k_pages))
    assert torch.equal(steps[0].fill, step.fill)
    assert torch.equal(steps[0].verdict, step.verdict)
    assert (int(step.verdict[0]) < 0) == refused
    if per_token:
        # The values, written second, left their own.
        write(scenario(contexts, contexts, page_size=page_size, kv_heads=1, dtype=FP8), key, key, scale=scales[0])
        assert refused or torch.equal(scales[0], scales[1])


def test_scales_that_do_not_fit_are_named() -> None:
    step = scaled_step()
    key, value = new_rows(step)
    with pytest.raises(KernelInputError, match=r"k_scale has shape \[2\], needed \[3\]"):
        write(step, key, value, scale=torch.ones(2))
    with pytest.raises(KernelInputError, match=r"k_scale is torch\.float64"):
        write(step, key, value, scale=torch.ones((), dtype=torch.float64))
    step = scaled_step(torch.bfloat16)
    with pytest.raises(KernelInputError, match=r"k_scale is per token and head, is torch\.bfloat16"):
        write(step, key, value, scale=torch.ones(step.k_pages.shape[:3]))
