"""KV write in C: the same bytes, scales, fill marks and verdict words as the reference, whatever is wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.kv_write import kv_write, mla_write
from octavo_kernels.errors import KernelInputError
from octavo_kernels.reference import kv_write as reference
from tests.kernels.paged import Scenario, scenario

pytestmark = pytest.mark.usefixtures("each_variant")

FP8 = torch.float8_e4m3fn
CHANGED = ("k_pages", "v_pages", "pages", "k_scale", "v_scale", "scale", "page_places", "verdict")


def arguments(step: Scenario, *, last_layer: bool = True) -> dict[str, Any]:
    return {
        "block_table": step.block_table,
        "token_rows": step.token_rows,
        "positions": step.positions,
        "nonces": step.nonces,
        "page_tags": step.tags,
        "page_writers": step.writers,
        "page_places": step.places,
        "verdict": step.verdict,
        "last_layer": last_layer,
    }


def in_heads(step: Scenario, kind: str, *, last_layer: bool = True) -> dict[str, Any]:
    shapes = {"tensor": (), "head": step.k_pages.shape[2:3], "token": step.k_pages.shape[:3]}
    return arguments(step, last_layer=last_layer) | {
        "k_pages": step.k_pages,
        "v_pages": step.v_pages,
        "k_scale": torch.rand(shapes[kind]) + 0.01,
        "v_scale": torch.rand(shapes[kind]) + 0.01,
    }


def in_rows(step: Scenario, kind: str, *, last_layer: bool = True) -> dict[str, Any]:
    shape = step.k_pages.shape[:2] if kind == "token" else ()
    return arguments(step, last_layer=last_layer) | {
        "pages": step.k_pages.squeeze(2),
        "scale": torch.rand(shape) + 0.01,
    }


def assert_equal_bytes(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits; a BF16 NaN may be any."""
    if got.dtype == torch.bfloat16:
        assert torch.equal(got.isnan(), expected.isnan()), name
        got, expected = got.nan_to_num(), expected.nan_to_num()
    assert torch.equal(got.flatten().view(torch.uint8), expected.flatten().view(torch.uint8)), name


def assert_same_effect(rows: tuple[torch.Tensor, ...], given_arguments: dict[str, Any]) -> None:
    expected = copy.deepcopy(given_arguments)
    latent = len(rows) == 1
    (mla_write if latent else kv_write)(*rows, **given_arguments)
    (reference.mla_write if latent else reference.kv_write)(*rows, **expected)
    for name in CHANGED:
        if name in expected:
            assert_equal_bytes(name, given_arguments[name], expected[name])


def spoil(step: Scenario, fault: str, token: int) -> None:
    """Something that refuses the store of one of the step's tokens, or of all tokens of its page."""
    row, index = int(step.token_rows[token]), int(step.positions[token]) // step.page_size
    index = min(max(index, 0), step.block_table.shape[1] - 1)
    page = int(step.block_table[row, index, 0]) % step.tags.shape[0]
    match fault:
        case "tag":
            step.tags[page] += 1
        case "writer":
            step.writers[page] = -1
        case "fill":
            step.fill[page] = step.page_size
        case "page":
            step.block_table[row, index, 0] = step.tags.shape[0]
        case "negative page":
            step.block_table[row, index, 0] = -(2**31)
        case "position":
            step.positions[token] = -1 - int(step.positions[token])
        case "far position":
            step.positions[token] = 2**62


FAULTS = ["none", "tag", "writer", "fill", "page", "negative page", "position", "far position"]
ODD = torch.tensor([float("nan"), -float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3e38, 449.0, -464.0])


@settings(deadline=None, max_examples=20)
@given(
    contexts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    page_size=st.sampled_from([1, 3, 16, 64]),
    share=st.floats(0.01, 1.0),
    form=st.sampled_from(["bf16", "tensor", "head", "token", "rows", "rows per token"]),
    dim=st.sampled_from([1, 7, 16, 64, 80]),
    faults=st.lists(st.sampled_from(FAULTS), max_size=2),
    last_layer=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_does_what_the_reference_does(
    contexts: list[int],
    page_size: int,
    share: float,
    form: str,
    dim: int,
    faults: list[str],
    last_layer: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    new = [max(1, int(context * share)) for context in contexts]
    latent, dtype = form.startswith("rows"), torch.bfloat16 if form == "bf16" else FP8
    step = scenario(contexts, new, page_size=page_size, kv_heads=1 if latent else 2, dim=dim, dtype=dtype, seed=seed)
    rows = tuple(torch.randn(sum(new), *step.k_pages.shape[2:]) * 3 for _ in range(2))
    for each in rows:
        each.view(-1)[torch.randint(0, each.numel(), (12,))] = ODD[torch.randint(0, len(ODD), (12,))]
    for fault in faults:
        spoil(step, fault, int(torch.randint(0, sum(new), ())))
    if latent:
        kind = "token" if "token" in form else "tensor"
        assert_same_effect((rows[0].squeeze(1),), in_rows(step, kind, last_layer=last_layer))
    else:
        kind = "tensor" if form == "bf16" else form
        assert_same_effect(rows, in_heads(step, kind, last_layer=last_layer))


@pytest.mark.parametrize("fault", FAULTS[1:])
def test_each_refusal_marks_its_row_and_stores_nothing(fault: str) -> None:
    step = scenario([20, 20], [1, 1])
    spoil(step, fault, 0)
    before = step.k_pages.clone()
    rows = torch.full((2, *step.k_pages.shape[2:]), 5.0)
    kv_write(rows, rows, **in_heads(step, "tensor"))
    assert step.verdict.tolist()[0] < 0
    assert step.verdict.tolist()[1] == 0
    assert int((before != step.k_pages).any(dim=-1).any(dim=-1).sum()) == 1


@pytest.mark.usefixtures("two_threads")
def test_a_long_prefill_on_two_threads() -> None:
    step = scenario([600], [600], dim=128, dtype=FP8)
    rows = tuple(torch.randn(600, *step.k_pages.shape[2:]) for _ in range(2))
    assert_same_effect(rows, in_heads(step, "token"))


def test_nothing_to_write() -> None:
    step = scenario([20], [0])
    empty = torch.zeros((0, *step.k_pages.shape[2:]))
    assert_same_effect((empty, empty), in_heads(step, "tensor"))


def test_inputs_that_cannot_be_taken_are_named() -> None:
    step = scenario([20], [1])
    rows, good = torch.zeros((1, *step.k_pages.shape[2:])), in_heads(step, "tensor")
    refused: dict[str, dict[str, Any]] = {
        "token_rows has 1, needed 0 to 0": {"token_rows": torch.tensor([1])},
        "token_rows has -1, needed 0 to 0": {"token_rows": torch.tensor([-1])},
        r"positions is torch\.int32": {"positions": step.positions.int()},
        r"page_places has shape \[2\]": {"page_places": step.places[:2]},
        "page_tags is not contiguous": {"page_tags": step.tags.repeat(2)[::2]},
        r"nonces is torch\.int64": {"nonces": step.nonces.long()},
        r"verdict is torch\.int64": {"verdict": step.verdict.long()},
    }
    for message, changed in refused.items():
        with pytest.raises(KernelInputError, match=message):
            kv_write(rows, rows, **good | changed)
    with pytest.raises(KernelInputError, match="key is not contiguous"):
        kv_write(rows.repeat(1, 1, 2)[..., ::2], rows, **good)
    with pytest.raises(KernelInputError, match="value has shape"):
        kv_write(rows, rows[:, :1], **good)
    with pytest.raises(KernelInputError, match="page_size is 256"):
        kv_write(rows, rows, **in_heads(scenario([20], [1], page_size=256), "tensor"))
