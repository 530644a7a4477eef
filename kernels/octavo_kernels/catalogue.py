"""Every implementation there is, best first for each operation, and the choice of all operations of a model's step."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from octavo_kernels import operations as ops
from octavo_kernels.device import Device
from octavo_kernels.operations import Operation
from octavo_kernels.registry import (
    ANY_SHAPE,
    REFERENCE,
    Choice,
    Formats,
    Implementation,
    NoImplementation,
    Registry,
    Shapes,
)

WhyNot = Callable[[Device, Formats, Shapes], str | None]

REFERENCE_WEIGHTS = frozenset({"BF16", "INT4", "FP8", "NVFP4"})
REFERENCE_KV = frozenset({"BF16", "FP8"})


def _anywhere(_device: Device, _formats: Formats, _shapes: Shapes) -> str | None:
    return None


def _weights_have_a_reference(_device: Device, formats: Formats, _shapes: Shapes) -> str | None:
    if formats.weights in REFERENCE_WEIGHTS:
        return None
    return f"{formats.weights} experts have no reference; there is one for {', '.join(sorted(REFERENCE_WEIGHTS))}"


def _pages_have_a_reference(_device: Device, formats: Formats, _shapes: Shapes) -> str | None:
    if formats.kv in REFERENCE_KV:
        return None
    return f"{formats.kv} pages have no reference; there is one for {', '.join(sorted(REFERENCE_KV))}"


def _of(module: str, name: str, *, instance: bool = False) -> Callable[[], object]:
    """Loader of `octavo_kernels.<module>.<name>`; of an instance of it where it is a class."""

    def load() -> object:
        target: object = getattr(importlib.import_module(f"octavo_kernels.{module}"), name)
        return target() if instance and callable(target) else target

    return load


def _reference(operation: Operation, load: Callable[[], object], why_not: WhyNot = _anywhere) -> Implementation:
    reason = "plain torch, exact in float32 and the same bits in every batch; slow"
    return Implementation(operation, REFERENCE, load, reason, why_not)


REGISTRY = Registry(
    (
        _reference(
            Operation.PAGED_ATTENTION, _of("reference.paged_attention", "paged_attention"), _pages_have_a_reference
        ),
        _reference(Operation.MLA_ATTENTION, _of("reference.mla_attention", "mla_attention"), _pages_have_a_reference),
        _reference(Operation.KV_WRITE, _of("reference.kv_write", "kv_write"), _pages_have_a_reference),
        _reference(Operation.MLA_WRITE, _of("reference.kv_write", "mla_write"), _pages_have_a_reference),
        _reference(Operation.CHECK_ROWS, _of("reference.integrity", "check_rows")),
        _reference(Operation.CONCLUDE, _of("reference.integrity", "conclude")),
        _reference(Operation.DIGEST_ROWS, _of("reference.digest", "digest_rows")),
        _reference(Operation.DIGEST_PAGES, _of("reference.digest", "digest_pages")),
        _reference(
            Operation.EXPERTS, _of("reference.moe", "ReferenceExperts", instance=True), _weights_have_a_reference
        ),
        _reference(Operation.ROUTER, _of("reference.router", "softmax_top_k")),
        _reference(Operation.SIGMOID_ROUTER, _of("reference.router", "sigmoid_top_k")),
        _reference(Operation.LINEAR, _of("reference.linear", "linear")),
        _reference(
            Operation.QUANTISED_LINEAR, _of("reference.quantised_linear", "ReferenceQuantisedLinear", instance=True)
        ),
        _reference(Operation.RMS_NORM, _of("reference.rms_norm", "rms_norm")),
        _reference(Operation.ROTARY_ANGLES, _of("reference.rotary", "angles")),
        _reference(Operation.ROTATE, _of("reference.rotary", "rotate")),
        _reference(Operation.SAMPLE, _of("reference.sampling", "sample")),
        _reference(Operation.LOGPROBS, _of("reference.sampling", "logprobs")),
    )
)
"""A new kernel adds its entries above the reference's."""


class ReferenceNotAllowed(NoImplementation):
    """Only the specification can run an operation here, and nobody has asked for that."""


@dataclass(frozen=True)
class Operations:
    """The chosen implementation of each operation of a step, and the choices with their reasons."""

    paged_attention: ops.PagedAttention
    mla_attention: ops.MlaAttention
    kv_write: ops.KvWrite
    mla_write: ops.MlaWrite
    check_rows: ops.CheckRows
    conclude: ops.Conclude
    digest_rows: ops.DigestRows
    digest_pages: ops.DigestPages
    experts: ops.ExpertKernel[ops.PreparedWeights]
    router: ops.Router
    sigmoid_router: ops.SigmoidRouter
    linear: ops.Linear
    quantised_linear: ops.LinearKernel[ops.PreparedWeights]
    rms_norm: ops.RmsNorm
    rotary_angles: ops.RotaryAngles
    rotate: ops.Rotate
    sample: ops.Sample
    logprobs: ops.TokenLogprobs
    choices: tuple[Choice, ...]


def operations_for(
    device: Device,
    formats: Formats,
    registry: Registry = REGISTRY,
    shapes: Shapes = ANY_SHAPE,
    *,
    allow_reference: bool = False,
) -> Operations:
    """Select and load every operation for one device.

    Raises NoImplementation where nothing can run an operation, and ReferenceNotAllowed where only the reference can.
    """
    choices = {operation: registry.select(operation, device, formats, shapes) for operation in registry.operations}
    slow = [choice for choice in choices.values() if choice.is_reference]
    if slow and not allow_reference:
        raise ReferenceNotAllowed("; ".join(_why_slow(choice) for choice in slow))
    loaded = {operation: choice.load() for operation, choice in choices.items()}
    return Operations(
        paged_attention=cast(ops.PagedAttention, loaded[Operation.PAGED_ATTENTION]),
        mla_attention=cast(ops.MlaAttention, loaded[Operation.MLA_ATTENTION]),
        kv_write=cast(ops.KvWrite, loaded[Operation.KV_WRITE]),
        mla_write=cast(ops.MlaWrite, loaded[Operation.MLA_WRITE]),
        check_rows=cast(ops.CheckRows, loaded[Operation.CHECK_ROWS]),
        conclude=cast(ops.Conclude, loaded[Operation.CONCLUDE]),
        digest_rows=cast(ops.DigestRows, loaded[Operation.DIGEST_ROWS]),
        digest_pages=cast(ops.DigestPages, loaded[Operation.DIGEST_PAGES]),
        experts=cast(ops.ExpertKernel[ops.PreparedWeights], loaded[Operation.EXPERTS]),
        router=cast(ops.Router, loaded[Operation.ROUTER]),
        sigmoid_router=cast(ops.SigmoidRouter, loaded[Operation.SIGMOID_ROUTER]),
        linear=cast(ops.Linear, loaded[Operation.LINEAR]),
        quantised_linear=cast(ops.LinearKernel[ops.PreparedWeights], loaded[Operation.QUANTISED_LINEAR]),
        rms_norm=cast(ops.RmsNorm, loaded[Operation.RMS_NORM]),
        rotary_angles=cast(ops.RotaryAngles, loaded[Operation.ROTARY_ANGLES]),
        rotate=cast(ops.Rotate, loaded[Operation.ROTATE]),
        sample=cast(ops.Sample, loaded[Operation.SAMPLE]),
        logprobs=cast(ops.TokenLogprobs, loaded[Operation.LOGPROBS]),
        choices=tuple(choices.values()),
    )


def _why_slow(choice: Choice) -> str:
    others = ", ".join(f"{rejected.name} {rejected.why_not}" for rejected in choice.rejected) or "there is no other"
    return f"{choice.operation} has only its reference here: {others}"
