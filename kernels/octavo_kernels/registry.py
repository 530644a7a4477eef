"""Which implementation of an operation runs on a device, and why each other one does not.

Implementations are tried in order of preference; the first that says nothing against itself is chosen. The answer
carries its reason and the reasons of all that were passed over, for logs, metrics, `python -m octavo_kernels.explain`
and for whoever wonders why it is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo_kernels.device import Device
from octavo_kernels.operations import Operation

REFERENCE = "reference"
"""Name of the implementations that are the specification."""


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
    """Name of its folder (reference, cpu, triton), and behind a dash what is special where a folder has several."""
    load: Callable[[], object]
    """Imports and gives the function, ExpertKernel or LinearKernel: called only for what is chosen."""
    reason: str
    """Why it is a good choice where it can run."""
    why_not: Callable[[Device, Formats, Shapes], str | None]
    """What speaks against it on a device for these formats and sizes, or None."""


@dataclass(frozen=True)
class Rejected:
    """An implementation that was passed over, and why."""

    name: str
    why_not: str
    could_run: bool = False
    """It was only outranked."""


@dataclass(frozen=True)
class Choice:
    """The implementation that runs, and why it and no other."""

    operation: Operation
    implementation: str
    reason: str
    rejected: tuple[Rejected, ...]
    load: Callable[[], object]

    @property
    def is_reference(self) -> bool:
        """Whether this is the specification, which is exact and slow."""
        return self.implementation == REFERENCE


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
                rejected.append(Rejected(candidate.name, f"{chosen.name} ranks before it", could_run=True))
            else:
                chosen = candidate
        if chosen is None:
            obstacles = "; ".join(f"{item.name}: {item.why_not}" for item in rejected) or "none is registered"
            raise NoImplementation(f"no kernel for {operation} on {device}: {obstacles}")
        return Choice(operation, chosen.name, chosen.reason, tuple(rejected), chosen.load)
