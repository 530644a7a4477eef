# mypy: allow-untyped-decorators
"""The KV write in Triton stores the bytes, marks and scales of the reference, and refuses what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8
from octavo_kernels.formats.place import place_of
from octavo_kernels.formats.verdict import UNCONCLUDED, Finding, findings_of
from octavo_kernels.reference import kv_write as reference
from octavo_kernels.triton import kv_write as kernels
from octavo_kernels.triton.e4m3 import decode_e4m3, encode_e4m3
from tests.kernels.paged import Scenario, scenario

FP8 = torch.float8_e4m3fn
LAYOUTS = ("tensor", "head", "token")
State = dict[str, torch.Tensor]


@triton.jit
def encode_all(values: Any, codes: Any, count: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(codes + place, encode_e4m3(tl.load(values + place, mask=place < count)), mask=place < count)


@triton.jit
def decode_all(codes: Any, values: Any, NATIVE: tl.constexpr) -> None:  # noqa: N803
    place = tl.arange(0, 256)
    tl.store(values + place, decode_e4m3(tl.load(codes + place), NATIVE))


def encoded(values: torch.Tensor) -> torch.Tensor:
    codes = torch.empty(values.shape, dtype=torch.uint8)
    encode_all[(triton.cdiv(values.numel(), 65536),)](values, codes, values.numel(), BLOCK=65536)
    return codes


def test_every_sixteen_bit_prefix_of_a_float_is_encoded_as_the_format_says() -> None:
    """All exponents and signs, subnormals, infinities, NaNs, and every tie: ties of e4m3 end in zeros from bit 19."""
    high = torch.arange(1 << 16, dtype=torch.int64) << 16
    for low in (0, 1, 0x8000, 0xFFFF):
        values = (high | low).to(torch.int32).view(torch.float32)
        assert torch.equal(encoded(values), fp8.encode(values).view(torch.uint8))


@pytest.mark.parametrize("native", [False, True])
def test_every_code_is_decoded_exactly(native: bool) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values = torch.empty(256, dtype=torch.bfloat16)
    decode_all[(1,)](codes, values, NATIVE=native)
    assert torch.equal(values.float().nan_to_num(999), fp8.decode(codes.view(FP8)).nan_to_num(999))


def scale_of(pages: torch.Tensor, layout: str) -> torch.Tensor:
    shape = {"tensor": (), "head": pages.shape[2:3], "token": pages.shape[:3]}[layout]
    return torch.rand(shape, generator=torch.Generator().manual_seed(5)) + 0.5


def state_of(step: Scenario, layout: str) -> State:
    return {
        "k_pages": step.k_pages,
        "v_pages": step.v_pages,
        "k_scale": scale_of(step.k_pages, layout),
        "v_scale": scale_of(step.v_pages, layout) * 2,
        "block_table": step.block_table,
        "token_rows": step.token_rows,
        "positions": step.positions,
        "nonces": step.nonces,
        "page_tags": step.tags,
        "page_writers": step.writers,
        "page_places": step.places,
        "verdict": step.verdict,
    }


def rows_for(step: Scenario, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((step.positions.shape[0], *step.k_pages.shape[2:]), generator=generator) * 30


def write_both(step: Scenario, key: torch.Tensor, value: torch.Tensor, *, layout: str, last_layer: bool) -> State:
    """The state after the kernel, which must be the state after the reference to the last bit."""
    got = state_of(step, layout)
    expected = copy.deepcopy(got)
    reference.kv_write(key, value, **expected, last_layer=last_layer)
    kernels.kv_write(key, value, **got, last_layer=last_layer)
    assert_same(got, expected)
    return got


def assert_same(got: State, expected: State) -> None:
    for name, tensor in expected.items():
        assert torch.equal(got[name].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)), name


@settings(deadline=None, max_examples=7)
@given(
    contexts=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    page_size=st.sampled_from([1, 3, 16, 64]),
    dtype=st.sampled_from([torch.bfloat16, FP8]),
    layout=st.sampled_from(LAYOUTS),
    share=st.floats(0.01, 1.0),
    last_layer=st.booleans(),
    heads=st.sampled_from([1, 2, 11]),
)
def test_any_shape_is_stored_as_the_reference_stores_it(
    contexts: list[int], page_size: int, dtype: torch.dtype, layout: str, share: float, last_layer: bool, heads: int
) -> None:
    new = [max(1, int(context * share)) for context in contexts]
    step = scenario(contexts, new, page_size=page_size, dtype=dtype, kv_heads=heads, dim=6)
    layout = "head" if dtype == torch.bfloat16 else layout
    state = write_both(step, rows_for(step), rows_for(step, 2), layout=layout, last_layer=last_layer)
    assert not state["verdict"].any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_at_the_ends_of_the_range_are_stored_as_the_reference_stores_them(layout: str) -> None:
    step = scenario([9], [9], dtype=FP8, dim=8)
    key = rows_for(step)
    nan, inf = float("nan"), float("inf")
    key[0] = 0.0
    key[1, 0] = torch.tensor([nan, inf, -inf, 1e-45, -1e-39, 3e38, -0.0, 448.0])
    key[2] = inf
    key[3] = nan
    key[4] = 1e-44
    key[5, 1] = torch.tensor([1e6, 1.0, -1.0, 2.0**-9, 2.0**-10, 3 * 2.0**-10, 464.0, 465.0])
    write_both(step, key, -key, layout=layout, last_layer=True)


def test_every_layer_of_a_step_sees_the_fill_mark_as_it_was_before_it() -> None:
    step = scenario([20], [12], page_size=16)
    key = rows_for(step)
    # Later slots first: a mark raised on the way would refuse the earlier ones.
    order = torch.arange(11, -1, -1)
    step.positions[:] = step.positions[order].clone()
    state = write_both(step, key, key, layout="tensor", last_layer=True)
    pages = step.block_table[0, :2, 0].tolist()
    assert state["page_places"][pages].tolist() == [place_of(0, 16), place_of(1, 4)]


def newer_generation(step: Scenario) -> None:
    step.tags[step.block_table[0, 0, 0]] += 2


def freed_page(step: Scenario) -> None:
    step.tags[step.block_table[0, 0, 0]] += 1
    step.writers[step.block_table[0, 0, 0]] = 0


def page_of_another(step: Scenario) -> None:
    step.writers[step.block_table[0, 0, 0]] = step.nonces[1]


def shared_page(step: Scenario) -> None:
    step.writers[step.block_table[0, 0, 0]] = -1


def page_beyond_the_pool(step: Scenario) -> None:
    step.block_table[0, 0, 0] = step.tags.shape[0]


def negative_page(step: Scenario) -> None:
    step.block_table[0, 0, 0] = -(2**31)


def null_page(step: Scenario) -> None:
    step.block_table[0, 0] = 0


def slot_below_the_fill_mark(step: Scenario) -> None:
    step.fill[step.block_table[0, 0, 0]] = 10


def negative_position(step: Scenario) -> None:
    step.positions[:2] = -1


def position_past_the_row(step: Scenario) -> None:
    step.positions[:2] = 10**6


REFUSALS: dict[Callable[[Scenario], None], Finding] = {
    newer_generation: Finding.TAG,
    freed_page: Finding.TAG | Finding.WRITER,
    page_of_another: Finding.WRITER,
    shared_page: Finding.WRITER,
    page_beyond_the_pool: Finding.RANGE | Finding.TAG | Finding.WRITER,
    negative_page: Finding.RANGE | Finding.TAG | Finding.WRITER,
    null_page: Finding.RANGE | Finding.WRITER,
    slot_below_the_fill_mark: Finding.SLOT,
    negative_position: Finding.SLOT,
    position_past_the_row: Finding.SLOT,
}


@pytest.mark.parametrize("fault", REFUSALS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("layout", ["head", "token"])
def test_a_refused_store_changes_nothing_but_the_mark(fault: Callable[[Scenario], None], layout: str) -> None:
    step = scenario([10, 10], [2, 1], dtype=FP8)
    fault(step)
    step.verdict[0] = UNCONCLUDED | int(Finding.FILL)
    state = write_both(step, rows_for(step), rows_for(step, 2), layout=layout, last_layer=True)
    # A position outside the row is compared with the entry nearest to it, so that one may find more.
    assert REFUSALS[fault] | Finding.FILL in findings_of(int(state["verdict"][0]), 1)
    assert int(state["verdict"][1]) == 0


@settings(deadline=None, max_examples=7)
@given(entry=st.integers(1, 2), part=st.integers(0, 1), word=st.integers(-(2**31), 2**31 - 1))
def test_any_word_in_a_block_table_is_refused_as_in_the_reference(entry: int, part: int, word: int) -> None:
    step = scenario([34, 5], [4, 1], dim=4)
    step.block_table[0, entry, part] = word
    write_both(step, rows_for(step), rows_for(step), layout="tensor", last_layer=True)


@pytest.mark.parametrize("last_layer", [False, True])
@pytest.mark.parametrize(("dtype", "layout"), [(torch.bfloat16, "tensor"), (FP8, "tensor"), (FP8, "token")])
def test_latent_rows_are_stored_as_the_reference_stores_them(dtype: torch.dtype, layout: str, last_layer: bool) -> None:
    step = scenario([20, 5], [7, 1], dtype=dtype, kv_heads=1, dim=24)
    step.writers[step.block_table[1, 0, 0]] = -1
    got = state_of(step, layout)
    got = {name: tensor for name, tensor in got.items() if name not in ("k_pages", "v_pages", "k_scale", "v_scale")}
    scale = scale_of(step.k_pages, layout)
    got |= {"pages": step.k_pages.squeeze(2), "scale": scale.squeeze(2) if scale.ndim else scale}
    expected = copy.deepcopy(got)
    rows = rows_for(step).squeeze(1)
    reference.mla_write(rows, **expected, last_layer=last_layer)
    kernels.mla_write(rows, **got, last_layer=last_layer)
    assert_same(got, expected)
    assert got["verdict"].tolist()[0] == 0
    assert Finding.WRITER in findings_of(int(got["verdict"][1]), 1)


def test_bfloat16_rows_are_stored_as_their_float32_values_are() -> None:
    step, same = (scenario([10], [3], dtype=FP8) for _ in range(2))
    key = rows_for(step).bfloat16()
    kernels.kv_write(key, key, **state_of(step, "head"), last_layer=False)
    kernels.kv_write(key.float(), key.float(), **state_of(same, "head"), last_layer=False)
    assert torch.equal(step.k_pages.view(torch.uint8), same.k_pages.view(torch.uint8))


@pytest.mark.parametrize("row", [-1, 2, 2**40])
def test_a_token_of_no_row_is_stored_nowhere(row: int) -> None:
    step = scenario([20, 9], [2, 1])
    step.token_rows[1] = row
    state = state_of(step, "tensor")
    expected = copy.deepcopy(state)
    key = rows_for(step)
    kernels.kv_write(key, key, **state, last_layer=True)
    others = [0, 2]
    expected["token_rows"], expected["positions"] = step.token_rows[others], step.positions[others]
    reference.kv_write(key[others], key[others], **expected, last_layer=True)
    for name in ("k_pages", "v_pages", "page_places", "verdict"):
        assert torch.equal(state[name], expected[name]), name


def test_a_table_without_pages_is_refused() -> None:
    step = scenario([20], [1])
    state = state_of(step, "tensor") | {"block_table": torch.zeros((1, 0, 2), dtype=torch.int32)}
    with pytest.raises(KernelInputError, match="rows of no pages"):
        kernels.kv_write(rows_for(step), rows_for(step), **state, last_layer=True)


def test_a_page_larger_than_its_fill_mark_counts_is_refused() -> None:
    step = scenario([20], [1], page_size=256)
    with pytest.raises(KernelInputError, match="page_size is 256"):
        kernels.kv_write(rows_for(step), rows_for(step), **state_of(step, "tensor"), last_layer=True)


def test_no_tokens_need_no_launch() -> None:
    step = scenario([10], [1])
    state = state_of(step, "tensor") | {name: torch.zeros(0).long() for name in ("token_rows", "positions")}
    kernels.kv_write(rows_for(step)[:0], rows_for(step)[:0], **state, last_layer=True)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("k_pages", lambda t: t.float(), "k_pages is torch.float32"),
        ("positions", lambda t: t.int(), "positions is torch.int32"),
        ("page_places", lambda t: t.long(), "page_places is torch.int64"),
        ("page_tags", lambda t: t[:-1], "page_tags has shape"),
        ("nonces", lambda t: t[:-1], "nonces has shape"),
        ("block_table", lambda t: t.repeat(1, 2, 1)[:, ::2], "block_table is not contiguous"),
    ],
)
def test_wrong_inputs_are_refused_by_name(
    name: str, spoil: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    step = scenario([10, 10], [2, 1])
    state = state_of(step, "tensor")
    state[name] = spoil(state[name])
    with pytest.raises(KernelInputError, match=message):
        kernels.kv_write(rows_for(step), rows_for(step), **state, last_layer=True)


def test_wrong_rows_are_refused_by_name() -> None:
    step = scenario([10, 10], [2, 1])
    key = rows_for(step)
    for rows, message in (
        (key.double(), "key is torch.float64"),
        (key[:2], "key has shape"),
        (key.repeat(1, 1, 2)[..., ::2], "key is not contiguous"),
    ):
        with pytest.raises(KernelInputError, match=message):
            kernels.kv_write(rows, key, **state_of(step, "tensor"), last_layer=True)
