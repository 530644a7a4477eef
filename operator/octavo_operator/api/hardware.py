"""What is known of a pool's hardware: the border between recognising it and planning for it."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_runtime.contract.precision import ComputeCapability


@dataclass(frozen=True)
class GpuFacts:
    """One hardware class: GPUs of the same compute capability and memory."""

    capability: ComputeCapability
    memory_mib: int
    gpus_per_node: int
    """GPUs that one pod can get at most: a replica does not span nodes."""
    nodes: int | None
    """Nodes of this class; None when no node was read."""
    origin: str
    """Where the figures come from, in words."""
    labelled: bool
    """Whether nodes carry these figures as labels, so that pods can be bound to the class by node affinity."""
    ephemeral_storage: bool = True
    """Whether the nodes account for local disk; where they do not, a pod that requests some is never scheduled."""


@dataclass(frozen=True)
class CpuFacts:
    """A pool without accelerator."""

    memory_mib: int | None
    """What one pod may use at most; None when nothing is known, then the plan takes what the model needs."""
    origin: str
    nodes: int | None = None
    ephemeral_storage: bool = True


Hardware = GpuFacts | CpuFacts


@dataclass(frozen=True)
class HardwareMissing:
    """No hardware to plan for: a reason for machines, and a sentence with what was looked for and what was seen."""

    reason: str
    message: str
