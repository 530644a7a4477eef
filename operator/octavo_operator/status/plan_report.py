"""A plan as status shows it."""

from __future__ import annotations

from octavo_operator.api.hardware import CpuFacts, Hardware
from octavo_operator.api.status import (
    HardwareStatus,
    MemoryStatus,
    PassedOverStatus,
    PoolPlanStatus,
    PrecisionStatus,
)
from octavo_operator.planning.plan import MemoryLines, Plan
from octavo_runtime.contract.precision import PassedOver, PrecisionChoice, generation_of


def pool_plan(name: str, plan: Plan) -> PoolPlanStatus:
    """One pool's plan with its reasons."""
    hardware = plan.hardware
    on_cpu = isinstance(hardware, CpuFacts)
    return PoolPlanStatus(
        name=name,
        accelerators="CPU" if isinstance(hardware, CpuFacts) else f"{plan.ranks}x{hardware.capability}",
        hardware=_hardware(hardware),
        precision=_precision(plan.precision),
        gpus_per_replica=0 if on_cpu else plan.ranks,
        memory=_memory(plan.memory),
        max_model_len=plan.max_model_len,
        max_concurrent_requests=plan.max_concurrent_requests,
        kv_tokens=plan.kv_tokens,
        passed_over=_passed_over(plan.passed_over),
    )


def _hardware(hardware: Hardware) -> HardwareStatus:
    if isinstance(hardware, CpuFacts):
        return HardwareStatus(
            accelerator="None",
            generation=generation_of(None).name,
            recognised=True,
            origin=hardware.origin,
            memory_mib=hardware.memory_mib,
            nodes=hardware.nodes,
        )
    generation = generation_of(hardware.capability)
    return HardwareStatus(
        accelerator="NVIDIA",
        generation=generation.name,
        recognised=generation.recognised,
        origin=hardware.origin,
        compute_capability=str(hardware.capability),
        memory_mib=hardware.memory_mib,
        gpus_per_node=hardware.gpus_per_node,
        nodes=hardware.nodes,
    )


def _precision(choice: PrecisionChoice) -> PrecisionStatus:
    return PrecisionStatus(
        summary=choice.summary,
        weights=choice.weights.value,
        weights_reason=choice.weights_reason,
        kv_cache=choice.kv.value,
        kv_cache_reason=choice.kv_reason,
        converted=choice.converted,
        passed_over=_passed_over(choice.passed_over),
    )


def _passed_over(options: tuple[PassedOver, ...]) -> tuple[PassedOverStatus, ...]:
    return tuple(PassedOverStatus(option=item.option, why=item.why) for item in options)


def _memory(lines: MemoryLines) -> MemoryStatus:
    return MemoryStatus(
        routed_experts=lines.routed_experts,
        embeddings=lines.embeddings,
        other_weights=lines.other_weights,
        kv_cache=lines.kv_cache,
        activations=lines.activations,
        runtime=lines.runtime,
        unused=lines.unused,
        total=lines.total,
    )
