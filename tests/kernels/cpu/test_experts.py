"""Routed experts in C, as every instruction set has them, against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu.experts import PLACES_PER_PASS, CpuExperts
from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats import fp8_block, int4, nvfp4
from octavo_kernels.formats.experts import (
    Bf16Experts,
    CanonicalExperts,
    Fp8BlockExperts,
    Int4Experts,
    Nvfp4Experts,
)
from octavo_kernels.formats.linear import Activations
from octavo_kernels.reference.moe import grouped_experts
from tests.kernels.close import assert_close
from tests.kernels.cpu.variants import VARIANTS, kernels_of

EXACT, ROUNDED = Activations.EXACT, Activations.QUANTISED


def experts_of(form: str, count: int, hidden: int, intermediate: int, group: int = 32) -> CanonicalExperts:
    gate_up = torch.randn(count, 2 * intermediate, hidden) / hidden**0.5
    down = torch.randn(count, hidden, intermediate) / intermediate**0.5
    match form:
        case "int4":
            return Int4Experts(int4.quantise(gate_up, group), int4.quantise(down, group))
        case "int4 with zero points":
            return Int4Experts(
                int4.quantise(gate_up, group, asymmetric=True), int4.quantise(down, group, asymmetric=True)
            )
        case "fp8":
            return Fp8BlockExperts(fp8_block.quantise(gate_up), fp8_block.quantise(down))
        case "nvfp4":
            return Nvfp4Experts(nvfp4.quantise(gate_up), nvfp4.quantise(down))
        case _:
            return Bf16Experts(gate_up.bfloat16(), down.bfloat16())


def routed(tokens: int, top_k: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.stack([torch.randperm(count)[:top_k] for _ in range(tokens)]) if tokens else torch.empty(0, top_k)
    return ids.long(), torch.rand(tokens, top_k)


FORMS = [("int4", EXACT), ("int4", ROUNDED), ("int4 with zero points", EXACT), ("int4 with zero points", ROUNDED)]
FORMS += [("bf16", EXACT), ("fp8", EXACT), ("nvfp4", EXACT)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("form", "activations"), FORMS)
@settings(max_examples=6, deadline=None)
@given(
    tokens=st.integers(0, 11),
    count=st.integers(1, 6),
    hidden=st.integers(1, 6),
    intermediate=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_equals_the_reference(
    variant: str,
    form: str,
    activations: Activations,
    tokens: int,
    count: int,
    hidden: int,
    intermediate: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    # FP8 and BF16 take any size, odd ones too; INT4 and NVFP4 need whole groups.
    unit = 16 if form == "nvfp4" else 32 if "int4" in form else 13
    experts = experts_of(form, count, unit * hidden, unit * intermediate)
    x, (ids, weights) = torch.randn(tokens, unit * hidden), routed(tokens, min(count, 3), count)
    with kernels_of(variant):
        kernel = CpuExperts(activations)
        result = kernel.apply(x, kernel.prepare(experts), ids, weights)
    # A rounding tie of the intermediate may fall the other way: one step of one value.
    within = 1e-5 if activations is EXACT else 4e-3
    assert_close(result, grouped_experts(x, experts, ids, weights, activations), within=within)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("group", [8, 64, 128])
@pytest.mark.parametrize("activations", [EXACT, ROUNDED])
def test_int4_takes_every_group_size(variant: str, group: int, activations: Activations) -> None:
    torch.manual_seed(1)
    experts = experts_of("int4", 3, 256, 128, group)
    x, (ids, weights) = torch.randn(5, 256), routed(5, 2, 3)
    with kernels_of(variant):
        kernel = CpuExperts(activations)
        result = kernel.apply(x, kernel.prepare(experts), ids, weights)
    within = 1e-5 if activations is EXACT else 4e-3
    assert_close(result, grouped_experts(x, experts, ids, weights, activations), within=within)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("form", "activations"), FORMS)
def test_a_token_has_the_same_bits_in_every_batch_and_with_every_number_of_threads(
    variant: str, form: str, activations: Activations, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    experts = experts_of(form, 4, 96, 160)
    x, (ids, weights) = torch.randn(23, 96), routed(23, 2, 4)
    with kernels_of(variant):
        kernel = CpuExperts(activations)
        prepared = kernel.prepare(experts)
        alone = [kernel.apply(x[t : t + 1], prepared, ids[t : t + 1], weights[t : t + 1]) for t in range(len(x))]
        together = kernel.apply(x, prepared, ids, weights)
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(2)
            by_two = kernel.apply(x, prepared, ids, weights)
        finally:
            torch.set_num_threads(before)
        monkeypatch.setattr("octavo_kernels.cpu.experts.PLACES_PER_PASS", 10)
        in_passes = kernel.apply(x, prepared, ids, weights)
    assert torch.equal(torch.cat(alone), together)
    assert torch.equal(by_two, together)
    assert torch.equal(in_passes, together)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("activations", [EXACT, ROUNDED])
def test_one_expert_may_take_every_token(variant: str, activations: Activations) -> None:
    torch.manual_seed(3)
    experts = experts_of("int4", 5, 64, 96)
    x, ids, weights = torch.randn(21, 64), torch.full((21, 1), 3), torch.rand(21, 1)
    with kernels_of(variant):
        kernel = CpuExperts(activations)
        result = kernel.apply(x, kernel.prepare(experts), ids, weights)
    within = 1e-5 if activations is EXACT else 4e-3
    assert_close(result, grouped_experts(x, experts, ids, weights, activations), within=within)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("form", "activations"), FORMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_stay_in_their_row(variant: str, form: str, activations: Activations, value: float) -> None:
    torch.manual_seed(4)
    experts = experts_of(form, 2, 64, 32)
    x, (ids, weights) = torch.randn(6, 64), routed(6, 2, 2)
    x[2, 5] = value
    expected = grouped_experts(x, experts, ids, weights, activations)
    with kernels_of(variant):
        kernel = CpuExperts(activations)
        result = kernel.apply(x, kernel.prepare(experts), ids, weights)
    assert torch.equal(result.isnan(), expected.isnan())
    clean = torch.arange(6) != 2
    assert result[clean].isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_weight_that_is_nan_makes_its_outputs_nan(variant: str) -> None:
    torch.manual_seed(5)
    fp8 = experts_of("fp8", 2, 130, 20)
    assert isinstance(fp8, Fp8BlockExperts)
    fp8.down.values.view(torch.uint8)[1, 7, 19] = 0xFF
    x, ids, weights = torch.randn(2, 130), torch.tensor([[0], [1]]), torch.ones(2, 1)
    with kernels_of(variant):
        kernel = CpuExperts()
        result = kernel.apply(x, kernel.prepare(fp8), ids, weights)
    assert torch.equal(result.isnan(), grouped_experts(x, fp8, ids, weights).isnan())
    assert result.isnan().sum() == 1


def test_packed_experts_know_their_size() -> None:
    experts = experts_of("int4", 2, 64, 64)
    assert CpuExperts().prepare(experts).nbytes == experts.nbytes


def test_scratch_memory_does_not_grow_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    kernel = CpuExperts()
    prepared = kernel.prepare(experts_of("int4", 2, 32, 32))
    monkeypatch.setattr("octavo_kernels.cpu.experts.torch.empty", _recording(torch.empty, sizes), raising=True)
    for tokens in (PLACES_PER_PASS, 4 * PLACES_PER_PASS):
        kernel.apply(
            torch.zeros(tokens, 32), prepared, torch.zeros(tokens, 1, dtype=torch.int64), torch.zeros(tokens, 1)
        )
    assert sizes[0] == sizes[1]


def _recording(empty: Callable[..., torch.Tensor], sizes: list[int]) -> Callable[..., torch.Tensor]:
    def record(size: int, *, dtype: torch.dtype) -> torch.Tensor:
        sizes.append(size)
        return empty(size, dtype=dtype)

    return record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 64, dtype=torch.bfloat16)}, "x is torch.bfloat16"),
        ({"x": torch.zeros(2, 32)}, "x has shape"),
        ({"x": torch.zeros(64, 2).t()}, "x is not contiguous"),
        ({"ids": torch.zeros(2, 2, dtype=torch.int32)}, "ids is torch.int32"),
        ({"ids": torch.tensor([[0, 1], [1, 2]])}, "ids has 2, needed 0 to 1"),
        ({"ids": torch.full((2, 2), -1)}, "ids has -1, needed 0 to 1"),
        ({"ids": torch.zeros(3, 2, dtype=torch.int64)}, "ids has shape"),
        ({"weights": torch.zeros(2, 3)}, "weights has shape"),
        ({"weights": torch.zeros(2, 2, dtype=torch.float64)}, "weights is torch.float64"),
    ],
)
def test_refuses_what_it_cannot_take(change: dict[str, torch.Tensor], message: str) -> None:
    kernel = CpuExperts()
    prepared = kernel.prepare(experts_of("int4", 2, 64, 32))
    inputs = {"x": torch.zeros(2, 64), "ids": torch.zeros(2, 2, dtype=torch.int64), "weights": torch.zeros(2, 2)}
    with pytest.raises(KernelInputError, match=message):
        kernel.apply(prepared=prepared, **(inputs | change))


def test_refuses_experts_without_inputs() -> None:
    empty = Bf16Experts(torch.zeros(1, 4, 0, dtype=torch.bfloat16), torch.zeros(1, 0, 2, dtype=torch.bfloat16))
    with pytest.raises(KernelInputError, match="needed one of a stack and one input at least"):
        CpuExperts().prepare(empty)


def test_refuses_groups_that_fill_no_word() -> None:
    with pytest.raises(KernelInputError, match="group size 4 is no multiple of 8"):
        CpuExperts().prepare(experts_of("int4", 1, 32, 32, group=4))


def test_refuses_rounded_activations_for_weight_only_formats() -> None:
    with pytest.raises(KernelInputError, match="weight-only on a CPU"):
        CpuExperts(ROUNDED).prepare(experts_of("fp8", 1, 32, 32))
