"""The registry chooses by device and format, and says why."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from octavo_kernels.catalogue import REGISTRY, ReferenceNotAllowed, operations_for
from octavo_kernels.device import CpuFeature, Device, DeviceError, DeviceKind
from octavo_kernels.explain import main, table
from octavo_kernels.implementations import reference
from octavo_kernels.operations import Operation
from octavo_kernels.registry import (
    Choice,
    Formats,
    Implementation,
    NoImplementation,
    Registry,
    Rejected,
    Shapes,
)

PLAIN_CPU = Device(DeviceKind.CPU)
SPECIFICATION = Registry(reference.IMPLEMENTATIONS)
HOPPER = Device(DeviceKind.CUDA, (9, 0))


def needs_avx512(device: Device, _formats: Formats, _shapes: Shapes) -> str | None:
    return None if CpuFeature.AVX512 in device.cpu_features else "needs AVX512"


def with_fast_linear() -> Registry:
    fast = Implementation(Operation.LINEAR, "cpu", object, "C with AVX-512", needs_avx512)
    return Registry((fast, *SPECIFICATION.implementations))


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("weights", ["BF16", "INT4"])
@pytest.mark.parametrize("kv", ["BF16", "FP8"])
def test_every_operation_has_a_reference(operation: Operation, weights: str, kv: str) -> None:
    choice = SPECIFICATION.select(operation, PLAIN_CPU, Formats(weights, kv))
    assert choice.implementation == "reference"
    assert choice.reason


def test_the_first_that_can_run_is_chosen_and_the_others_say_why_not() -> None:
    fast = replace(PLAIN_CPU, cpu_features=frozenset({CpuFeature.AVX512}))
    choice = with_fast_linear().select(Operation.LINEAR, fast, Formats())
    assert (choice.implementation, choice.reason) == ("cpu", "C with AVX-512")
    assert choice.rejected == (Rejected("reference", "cpu ranks before it", could_run=True),)


def test_what_cannot_run_is_passed_over_with_its_reason() -> None:
    choice = with_fast_linear().select(Operation.LINEAR, PLAIN_CPU, Formats())
    assert choice.implementation == "reference"
    assert choice.rejected == (Rejected("cpu", "needs AVX512"),)


def test_formats_that_nothing_can_do_are_refused_with_every_obstacle() -> None:
    with pytest.raises(NoImplementation, match=r"no kernel for experts on compute capability 9\.0: .*reference: MXFP4"):
        REGISTRY.select(Operation.EXPERTS, HOPPER, Formats(weights="MXFP4"))
    with pytest.raises(NoImplementation, match=r"no kernel for kv_write on .*reference: INT8 pages have no reference"):
        REGISTRY.select(Operation.KV_WRITE, HOPPER, Formats(kv="INT8"))
    with pytest.raises(NoImplementation, match="none is registered"):
        Registry(()).select(Operation.LINEAR, PLAIN_CPU, Formats())


def test_the_operations_of_a_model_are_those_that_were_chosen() -> None:
    operations = operations_for(PLAIN_CPU, Formats("INT4", "FP8"), allow_reference=True)
    assert [choice.operation for choice in operations.choices] == list(REGISTRY.operations)
    by_operation: dict[Operation, Choice] = {choice.operation: choice for choice in operations.choices}
    assert operations.paged_attention is by_operation[Operation.PAGED_ATTENTION].load()
    assert isinstance(operations.experts, type(by_operation[Operation.EXPERTS].load()))
    assert operations.sample is by_operation[Operation.SAMPLE].load()


def test_every_choice_has_a_place_where_a_model_finds_it() -> None:
    operations = operations_for(PLAIN_CPU, Formats(), allow_reference=True)
    assert len(fields(operations)) == len(operations.choices) + 1


def test_the_specification_is_no_product_path_unless_asked_for() -> None:
    with pytest.raises(ReferenceNotAllowed, match=r"linear has only its reference here: there is no other"):
        operations_for(PLAIN_CPU, Formats(), SPECIFICATION)
    assert operations_for(PLAIN_CPU, Formats(), SPECIFICATION, allow_reference=True).choices


def test_a_device_is_described_by_two_integers_or_by_features() -> None:
    assert Device.parse("sm_90") == HOPPER
    assert Device.parse("sm_103").compute_capability == (10, 3)
    assert Device.of(torch.device("cpu")) == Device.parse("cpu") == Device.cpu()
    assert str(HOPPER) == "compute capability 9.0"
    assert str(replace(PLAIN_CPU, cpu_features=frozenset({CpuFeature.AVX512_BF16, CpuFeature.AVX2}))) == (
        "CPU with AVX2, AVX512_BF16"
    )


@pytest.mark.parametrize("text", ["", "H100", "sm_9", "sm_", "9.0"])
def test_a_device_that_is_not_understood_is_shown(text: str) -> None:
    with pytest.raises(DeviceError, match=f"got '{text}'"):
        Device.parse(text)


def test_devices_without_kernels_are_refused() -> None:
    with pytest.raises(DeviceError, match="device 'meta' has no kernels"):
        Device.of(torch.device("meta"))


@pytest.mark.parametrize(
    ("device", "weights", "chosen"),
    [
        ("sm_80", "INT4", "triton-int4-w4a16"),
        ("sm_80", "FP8", "triton-fp8-w8a16"),
        ("sm_89", "FP8", "triton-fp8-w8a8"),
        ("sm_90", "NVFP4", "triton-nvfp4-w4a16"),
        ("sm_100", "NVFP4", "triton-nvfp4-w4a4"),
        ("sm_120", "NVFP4", "triton-nvfp4-w4a4"),
        ("sm_110", "FP8", "triton-fp8-w8a16"),
        ("sm_90", "BF16", "triton-bf16"),
    ],
)
def test_experts_use_the_products_that_a_generation_has(device: str, weights: str, chosen: str) -> None:
    choice = REGISTRY.select(Operation.EXPERTS, Device.parse(device), Formats(weights))
    assert choice.implementation == chosen


@pytest.mark.parametrize(
    ("shapes", "operation", "why_not"),
    [
        (Shapes(hidden=100), Operation.EXPERTS, "takes sizes that divide by 32; the hidden size is 100"),
        (Shapes(intermediate=24), Operation.EXPERTS, "takes sizes that divide by 32; the intermediate size is 24"),
        (Shapes(group_size=16), Operation.EXPERTS, "takes INT4 groups of 32, 64, 128, not 16"),
        (Shapes(head_dim=320), Operation.PAGED_ATTENTION, "takes head dimensions up to 256, not 320"),
        (Shapes(head_dim=640), Operation.MLA_ATTENTION, "takes latent dimensions up to 512, not 640"),
    ],
)
def test_sizes_that_a_kernel_does_not_take_are_named(shapes: Shapes, operation: Operation, why_not: str) -> None:
    choice = REGISTRY.select(operation, HOPPER, Formats("INT4", "FP8"), shapes)
    assert choice.is_reference
    assert why_not in [rejected.why_not for rejected in choice.rejected]


def test_before_compute_capability_8_there_is_only_the_specification() -> None:
    choice = REGISTRY.select(Operation.PAGED_ATTENTION, Device.parse("sm_75"), Formats())
    assert choice.is_reference
    assert any("needs compute capability 8.0" in rejected.why_not for rejected in choice.rejected)


def test_explain_names_every_operation_and_what_was_passed_over() -> None:
    text = table(PLAIN_CPU, Formats("INT4", "FP8"), with_fast_linear())
    assert "CPU without AVX2, INT4 experts, FP8 KV cache" in text
    assert all(operation in text for operation in REGISTRY.operations)
    assert "cpu  needs AVX512 (linear)" in text


def test_explain_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "sm_90", "--weights", "int4", "--kv", "fp8"]) == 0
    assert "compute capability 9.0, INT4 experts, FP8 KV cache" in capsys.readouterr().out
    assert main(["--device", "H100"]) == 2
    assert "device must look like cpu or sm_90, got 'H100'" in capsys.readouterr().err
    assert main(["--weights", "mxfp4"]) == 1
    assert "MXFP4 weights have no reference" in capsys.readouterr().err
