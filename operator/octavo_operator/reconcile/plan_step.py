"""Second step: hardware and plan, frozen; and whether a frozen plan is still what would be planned today."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_operator.api.hardware import CpuFacts, HardwareMissing
from octavo_operator.api.labels import REPLAN
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.api.source import parse_source
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.api.status import ModelStatus, PoolPlanStatus
from octavo_operator.hardware.pool import recognise
from octavo_operator.planning.plan import NoPlan, PlanRequest
from octavo_operator.planning.planner import plan
from octavo_operator.reconcile.settings import Settings
from octavo_operator.reconcile.world import World
from octavo_operator.resources.frozen import FrozenPlan, plan_inputs
from octavo_operator.resources.serving_pod import Serving, build_pod_template
from octavo_operator.status.findings import Finding, no, yes
from octavo_operator.status.plan_report import pool_plan

OTHER_VERSION = "The plan was made by another version of the operator and is deployed as it is"


@dataclass(frozen=True)
class PlanStep:
    """What came of planning."""

    hardware: Finding
    plan: Finding | None
    frozen: FrozenPlan | None
    """The plan to deploy; None when there is none."""


def make_plan(world: World, spec: ModelDeploymentSpec, model: ModelStatus, replan: str, settings: Settings) -> PlanStep:
    """Recognise the pool's hardware, plan for it and freeze what came out."""
    hardware = recognise(spec.pool, world.nodes)
    if isinstance(hardware, HardwareMissing):
        return PlanStep(no(hardware.reason, hardware.message), None, None)
    try:
        request = PlanRequest(
            facts=model.facts,
            hardware=hardware,
            precision=spec.precision.to_request(),
            max_model_len=spec.context.max_model_len,
            max_concurrent_requests=spec.context.max_concurrent_requests,
            gpus_per_replica=spec.pool.gpus_per_replica,
            memory_limit_bytes=_memory_limit(spec) if isinstance(hardware, CpuFacts) else None,
        )
    except ValueError as error:
        return PlanStep(yes("Recognized", hardware.origin), no("InvalidResources", str(error)), None)
    outcome = plan(request)
    if isinstance(outcome, NoPlan):
        return PlanStep(yes("Recognized", hardware.origin), no(outcome.reason, outcome.message), None)
    image = spec.engine.image or settings.runtime_image
    serving = Serving(world.owner, spec, parse_source(model.source), image, model.facts, outcome)
    frozen = FrozenPlan(
        inputs=plan_inputs(world.raw_spec),
        replan=replan,
        source=model.source,
        revision=model.revision,
        inspection=model.inspection,
        image=image,
        facts=model.facts,
        pool=pool_plan(spec.pool.name, outcome),
        template=build_pod_template(serving),
    )
    return PlanStep(hardware_finding(frozen), planned_finding(frozen), frozen)


def _memory_limit(spec: ModelDeploymentSpec) -> int | None:
    """Bytes that the user allows a CPU pod; raises ValueError for a limit that is no quantity."""
    limit = spec.engine.resources.limits.get("memory")
    return None if limit is None else int(parse_quantity(limit))


def hardware_finding(frozen: FrozenPlan) -> Finding:
    """An unknown generation still runs, on the safe formats, and is said."""
    if frozen.pool is None:
        return yes("Recognized", OTHER_VERSION)
    hardware = frozen.pool.hardware
    if hardware.compute_capability is None:
        return yes("Recognized", f"CPU; {hardware.origin}")
    seen = f"compute capability {hardware.compute_capability} with {hardware.memory_mib} MiB ({hardware.origin})"
    if hardware.recognised:
        return yes("Recognized", f"{hardware.generation}: {seen}")
    return no(
        "UnknownGeneration",
        f"{seen} is not in the precision table of this version: planned with BF16, which is safe but costs memory",
    )


def planned_finding(frozen: FrozenPlan, outdated: str | None = None) -> Finding:
    """Planned=True, outdated or not: an outdated plan is in force until it is asked for anew."""
    pool = frozen.pool
    if pool is None:
        return yes("PlanOutdated", outdated or OTHER_VERSION)
    text = f"{pool.accelerators}: {pool.precision.summary}, {pool.max_model_len:,} tokens of context"
    if outdated is None:
        return yes("Planned", f"{text}. {pool.precision.weights_reason}. {pool.precision.kv_cache_reason}")
    return yes("PlanOutdated", f"{text}. {outdated}")


def outdated_by(world: World, spec: ModelDeploymentSpec, frozen: FrozenPlan, settings: Settings) -> str | None:
    """What planning today would change about a frozen plan, in words; None when nothing."""
    if frozen.facts is None or frozen.pool is None:
        return f"{OTHER_VERSION}; set the annotation {REPLAN} to a new value to plan anew"
    model = ModelStatus(
        source=frozen.source, revision=frozen.revision, inspection=frozen.inspection, facts=frozen.facts
    )
    today = make_plan(world, spec, model, frozen.replan, settings)
    if today.frozen is None:
        finding = today.plan or today.hardware
        return f"Planning anew would fail now: {finding.message}"
    if today.frozen.template == frozen.template:
        return None
    changes = _differences(frozen, today.frozen)
    return f"A new plan would change {', '.join(changes)}; set the annotation {REPLAN} to a new value to take it"


def _differences(old: FrozenPlan, new: FrozenPlan) -> list[str]:
    changes = [f"image from {old.image} to {new.image}"] if old.image != new.image else []
    if old.pool is not None and new.pool is not None:
        changes += _pool_differences(old.pool, new.pool)
    return changes or ["the pod template"]


def _pool_differences(old: PoolPlanStatus, new: PoolPlanStatus) -> list[str]:
    pairs = (
        ("hardware", old.accelerators, new.accelerators),
        ("precision", old.precision.summary, new.precision.summary),
        ("maxModelLen", old.max_model_len, new.max_model_len),
        ("maxConcurrentRequests", old.max_concurrent_requests, new.max_concurrent_requests),
        ("KV cache bytes", old.memory.kv_cache, new.memory.kv_cache),
    )
    return [f"{what} from {before} to {after}" for what, before, after in pairs if before != after]
