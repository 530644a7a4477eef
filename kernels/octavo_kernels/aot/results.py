"""What a compilation found, as it travels between processes, into the cache and into the JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from octavo_kernels.triton.aot_case import Architecture


@dataclass(frozen=True)
class Measured:
    """One case compiled for one architecture by one version of Triton, or the reason why it could not be."""

    error: str | None = None
    """Last lines of what the compiler said; the other fields then mean nothing."""
    registers: int = 0
    """Per thread."""
    stack_bytes: int = 0
    """Per thread; anything above zero is registers spilled to memory."""
    shared_bytes: int = 0
    """Per block."""
    tensor_columns: int = 0
    """Columns of tensor memory per block (10.x)."""
    warps: int = 0
    """Per block."""
    target: str = ""
    """What Triton compiled for, e.g. `sm_90a`: from 9.0 on it appends the `a` of architecture-specific features itself,
    so a kernel of this matrix runs on exactly that compute capability."""
    matrix: tuple[str, ...] = ()
    """Matrix instructions of the PTX, each once."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For json.dumps."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The reverse of `as_json`."""
        return cls(**{**document, "matrix": tuple(document["matrix"])})


class Outcome(StrEnum):
    """How a pair of case and architecture came out."""

    COMPILED = "compiled"
    REFUSED = "refused"
    """The registry or launcher would not start this kernel there; `why_not` says why."""
    FAILED = "failed"
    """At least one gate is red."""


@dataclass(frozen=True)
class Result:
    """One cell of the matrix."""

    case: str
    architecture: Architecture
    triton: str
    outcome: Outcome
    problems: tuple[str, ...] = ()
    """Why it failed, one sentence each."""
    why_not: str | None = None
    measured: Measured | None = None
    cached: bool = False

    def as_json(self) -> dict[str, Any]:
        """For json.dumps."""
        return asdict(self)
