"""Every implementation there is, best first for each operation, and the choice of all operations of a model's step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from octavo_kernels import operations as ops
from octavo_kernels.device import Device
from octavo_kernels.implementations import cpu, reference, triton
from octavo_kernels.operations import Operation
from octavo_kernels.registry import ANY_SHAPE, Choice, Formats, NoImplementation, Registry, Shapes

REGISTRY = Registry((*cpu.IMPLEMENTATIONS, *triton.IMPLEMENTATIONS, *reference.IMPLEMENTATIONS))
"""The specification comes last: it runs where nothing else can, and only when asked for."""


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
