"""Which implementation of an operation runs on a device, and why each other one does not.

Implementations are tried in order of preference; the first that says nothing against itself is chosen. The answer
carries its reason and the reasons of all that were passed over, for logs, metrics, `python -m octavo_kernels.explain`
and for whoever wonders why it is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from octavo_kernels import operations as ops
from octavo_kernels.device import Device
from octavo_kernels.operations import Operation
from octavo_kernels.reference import integrity, linear, moe, rms_norm, rotary, router, sampling
from octavo_kernels.reference.kv_write import kv_write
from octavo_kernels.reference.paged_attention import paged_attention


@dataclass(frozen=True)
class Formats:
    """Number formats that a choice may depend on; names as in `contract/precision.py`."""

    weights: str = "BF16"
    """Routed experts in memory."""
    kv: str = "BF16"
    """Pages of the KV cache."""


@dataclass(frozen=True)
class Shapes:
    """Sizes that a choice may depend on; None where nobody has said, which then speaks against nothing."""

    head_dim: int | None = None
    """Of a GQA key; of an MLA row without its rotary part."""
    rope_dim: int | None = None
    """Rotary part of an MLA row."""
    group: int | None = None
    """Query heads per KV head."""
    page_size: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    """Of one routed expert, on one rank."""
    group_size: int | None = None
    """Of INT4 weights."""


ANY_SHAPE = Shapes()


@dataclass(frozen=True)
class Implementation:
    """One way to do an operation."""

    operation: Operation
    name: str
    """Name of its folder: reference, cpu, triton."""
    target: object
    """The function, or the ExpertKernel."""
    reason: str
    """Why it is a good choice where it can run."""
    why_not: Callable[[Device, Formats, Shapes], str | None]
    """What speaks against it on a device for these formats and sizes, or None."""


@dataclass(frozen=True)
class Rejected:
    """An implementation that was passed over, and why."""

    name: str
    why_not: str


@dataclass(frozen=True)
class Choice:
    """The implementation that runs, and why it and no other."""

    operation: Operation
    implementation: str
    reason: str
    rejected: tuple[Rejected, ...]
    target: object


class NoImplementation(LookupError):
    """No implementation of an operation can run on a device; the message lists what speaks against each."""


@dataclass(frozen=True)
class Registry:
    """Implementations, best first for each operation."""

    implementations: tuple[Implementation, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Those that have an implementation at all."""
        known = {implementation.operation for implementation in self.implementations}
        return tuple(operation for operation in Operation if operation in known)

    def select(self, operation: Operation, device: Device, formats: Formats, shapes: Shapes = ANY_SHAPE) -> Choice:
        """The first implementation that can run; raises NoImplementation naming every obstacle."""
        rejected: list[Rejected] = []
        chosen: Implementation | None = None
        for candidate in self.implementations:
            if candidate.operation is not operation:
                continue
            why_not = candidate.why_not(device, formats, shapes)
            if why_not is not None:
                rejected.append(Rejected(candidate.name, why_not))
            elif chosen is not None:
                rejected.append(Rejected(candidate.name, f"{chosen.name} ranks before it"))
            else:
                chosen = candidate
        if chosen is None:
            obstacles = "; ".join(f"{item.name}: {item.why_not}" for item in rejected) or "none is registered"
            raise NoImplementation(f"no kernel for {operation} on {device}: {obstacles}")
        return Choice(operation, chosen.name, chosen.reason, tuple(rejected), chosen.target)


REFERENCE_WEIGHTS = frozenset({"BF16", "INT4"})
REFERENCE_KV = frozenset({"BF16", "FP8"})


def _anywhere(_device: Device, _formats: Formats, _shapes: Shapes) -> str | None:
    return None


def _experts_have_a_reference(_device: Device, formats: Formats, _shapes: Shapes) -> str | None:
    if formats.weights in REFERENCE_WEIGHTS:
        return None
    return f"{formats.weights} experts have no reference; there is one for {', '.join(sorted(REFERENCE_WEIGHTS))}"


def _pages_have_a_reference(_device: Device, formats: Formats, _shapes: Shapes) -> str | None:
    if formats.kv in REFERENCE_KV:
        return None
    return f"{formats.kv} pages have no reference; there is one for {', '.join(sorted(REFERENCE_KV))}"


def _reference(
    operation: Operation, target: object, why_not: Callable[[Device, Formats, Shapes], str | None] = _anywhere
) -> Implementation:
    reason = "plain torch, exact in float32 and the same bits in every batch; slow"
    return Implementation(operation, "reference", target, reason, why_not)


REGISTRY = Registry(
    (
        _reference(Operation.PAGED_ATTENTION, paged_attention, _pages_have_a_reference),
        _reference(Operation.KV_WRITE, kv_write, _pages_have_a_reference),
        _reference(Operation.CHECK_ROWS, integrity.check_rows),
        _reference(Operation.CONCLUDE, integrity.conclude),
        _reference(Operation.EXPERTS, moe.ReferenceExperts(), _experts_have_a_reference),
        _reference(Operation.ROUTER, router.softmax_top_k),
        _reference(Operation.LINEAR, linear.linear),
        _reference(Operation.RMS_NORM, rms_norm.rms_norm),
        _reference(Operation.ROTARY_ANGLES, rotary.angles),
        _reference(Operation.ROTATE, rotary.rotate),
        _reference(Operation.SAMPLE, sampling.sample),
    )
)
"""Every implementation there is. A new kernel adds its entries above the reference's."""


@dataclass(frozen=True)
class Operations:
    """The chosen implementation of each operation of a step, and the choices with their reasons."""

    paged_attention: ops.PagedAttention
    kv_write: ops.KvWrite
    check_rows: ops.CheckRows
    conclude: ops.Conclude
    experts: ops.ExpertKernel[ops.PreparedWeights]
    router: ops.Router
    linear: ops.Linear
    rms_norm: ops.RmsNorm
    rotary_angles: ops.RotaryAngles
    rotate: ops.Rotate
    sample: ops.Sample
    choices: tuple[Choice, ...]


def operations_for(
    device: Device, formats: Formats, registry: Registry = REGISTRY, shapes: Shapes = ANY_SHAPE
) -> Operations:
    """Select every operation for one device; raises NoImplementation."""
    choices = {operation: registry.select(operation, device, formats, shapes) for operation in registry.operations}
    return Operations(
        paged_attention=cast(ops.PagedAttention, choices[Operation.PAGED_ATTENTION].target),
        kv_write=cast(ops.KvWrite, choices[Operation.KV_WRITE].target),
        check_rows=cast(ops.CheckRows, choices[Operation.CHECK_ROWS].target),
        conclude=cast(ops.Conclude, choices[Operation.CONCLUDE].target),
        experts=cast(ops.ExpertKernel[ops.PreparedWeights], choices[Operation.EXPERTS].target),
        router=cast(ops.Router, choices[Operation.ROUTER].target),
        linear=cast(ops.Linear, choices[Operation.LINEAR].target),
        rms_norm=cast(ops.RmsNorm, choices[Operation.RMS_NORM].target),
        rotary_angles=cast(ops.RotaryAngles, choices[Operation.ROTARY_ANGLES].target),
        rotate=cast(ops.Rotate, choices[Operation.ROTATE].target),
        sample=cast(ops.Sample, choices[Operation.SAMPLE].target),
        choices=tuple(choices.values()),
    )
