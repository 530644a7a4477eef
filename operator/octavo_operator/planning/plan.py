"""The shapes of planning: what is asked, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_operator.api.hardware import Hardware
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.parallel import BUNDLED_RUNTIME_WORLD_SIZES
from octavo_runtime.contract.precision import PassedOver, PrecisionChoice, PrecisionRequest


@dataclass(frozen=True)
class PlanRequest:
    """Everything that a plan depends on."""

    facts: ModelFacts
    hardware: Hardware
    precision: PrecisionRequest = field(default_factory=PrecisionRequest)
    max_model_len: int | None = None
    """context.maxModelLen; None lets the memory decide."""
    max_concurrent_requests: int | None = None
    gpus_per_replica: int | None = None
    memory_limit_bytes: int | None = None
    """CPU pools: engine.resources.limits.memory."""
    world_sizes: frozenset[int] | None = BUNDLED_RUNTIME_WORLD_SIZES
    """Numbers of GPUs that the runtime can spread a replica over; None for any that divides the model."""


@dataclass(frozen=True)
class MemoryLines:
    """Bytes on one GPU, or of one CPU pod. What is left of `total` is unused."""

    routed_experts: int
    embeddings: int
    other_weights: int
    kv_cache: int
    activations: int
    runtime: int
    total: int
    """The GPU's memory; on a CPU what the pod requests."""

    @property
    def needed(self) -> int:
        """The sum of the lines."""
        return (
            self.routed_experts + self.embeddings + self.other_weights + self.kv_cache + self.activations + self.runtime
        )

    @property
    def unused(self) -> int:
        """Bytes that no line claims."""
        return self.total - self.needed


@dataclass(frozen=True)
class Plan:
    """What one replica runs, with the reasons."""

    hardware: Hardware
    precision: PrecisionChoice
    ranks: int
    """Tensor-parallel size: GPUs of one replica; 1 on a CPU."""
    memory: MemoryLines
    max_model_len: int
    max_concurrent_requests: int
    kv_tokens: int
    passed_over: tuple[PassedOver, ...]
    """Numbers of GPUs that were not taken, and why."""


@dataclass(frozen=True)
class NoPlan:
    """Why there is no plan: a reason for machines, and a sentence that says what would help."""

    reason: str
    message: str
