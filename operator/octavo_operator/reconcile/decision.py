"""Decide: from the world to the children that should be there and to what can be said so far. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pydantic import ValidationError

from octavo_operator.api import labels
from octavo_operator.api.source import Source, parse_source
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.api.status import ConditionStatus, ModelStatus
from octavo_operator.inspection.pods import scheduling_trouble
from octavo_operator.reconcile.model_step import ModelStep, find_model
from octavo_operator.reconcile.plan_step import hardware_finding, make_plan, outdated_by, planned_finding
from octavo_operator.reconcile.settings import Settings
from octavo_operator.reconcile.world import JsonObject, World
from octavo_operator.resources.children import (
    build_deployment,
    build_service,
    build_service_account,
    deployment_name,
)
from octavo_operator.resources.frozen import FrozenPlan, Unreadable, plan_inputs
from octavo_operator.resources.ownership import Manifest
from octavo_operator.status.conditions import Decided
from octavo_operator.status.findings import no
from octavo_operator.status.workload import is_ready


@dataclass(frozen=True)
class Decision:
    """What should be, and why."""

    decided: Decided
    spec: ModelDeploymentSpec | None = None
    """None when the spec cannot be read by this version."""
    model: ModelStatus | None = None
    frozen: FrozenPlan | None = None
    """The plan that is deployed, or about to be."""
    outdated: str | None = None
    service_account: Manifest | None = None
    service: Manifest | None = None
    deployment: Manifest | None = None
    """Of the plan before while there is none for the present spec; None where there is no plan at all for the pool."""
    inspect_pod: Manifest | None = None
    """To be created."""
    obsolete_pods: tuple[JsonObject, ...] = ()
    obsolete_deployments: tuple[JsonObject, ...] = ()
    requeue_seconds: float | None = None

    @property
    def source(self) -> Source | None:
        """The resolved source of what is deployed."""
        return parse_source(self.frozen.source) if self.frozen is not None else None


def decide(world: World, settings: Settings) -> Decision:
    """The whole decision for one ModelDeployment."""
    try:
        spec = ModelDeploymentSpec.model_validate(world.raw_spec)
    except ValidationError as error:
        return Decision(Decided(model=no("InvalidSpec", _explain(error))))
    deployed = deployed_plan(world, spec)
    replan = world.replan_token or (deployed.replan if deployed else "")
    frozen = None if isinstance(deployed, Unreadable) else deployed
    base = Decision(
        Decided(),
        spec=spec,
        frozen=frozen,
        service_account=build_service_account(world.owner),
        service=build_service(world.owner),
    )
    model = find_model(world, spec, frozen, replan, settings)
    if isinstance(deployed, Unreadable) and deployed.replan == replan:
        return _hold(base, world, spec, model)
    if frozen is not None and frozen.inputs == plan_inputs(world.raw_spec) and frozen.replan == replan:
        return _keep(base, world, spec, frozen, model, settings)
    return _renew(base, world, spec, model, replan, settings)


def deployed_plan(world: World, spec: ModelDeploymentSpec) -> FrozenPlan | Unreadable | None:
    """The plan that this pool's Deployment carries; else, after a pool was renamed, any other's of ours."""
    name = deployment_name(world.owner.name, spec.pool.name)
    ours = sorted(world.owned_deployments(), key=lambda item: item["metadata"]["name"] != name)
    for item in ours:
        annotations = item["metadata"].get("annotations") or {}
        frozen = FrozenPlan.parse(annotations.get(labels.FROZEN_PLAN))
        if isinstance(frozen, FrozenPlan) or (frozen is not None and item["metadata"]["name"] == name):
            return frozen
    return None


def _hold(base: Decision, world: World, spec: ModelDeploymentSpec, model: ModelStep) -> Decision:
    """Nobody can tell what runs was planned for: it runs on until somebody asks for a new plan."""
    finding = no(
        "PlanUnreadable",
        f"annotation {labels.FROZEN_PLAN} of Deployment {deployment_name(world.owner.name, spec.pool.name)} cannot be "
        f"read by this version of the operator, so the Deployment is left as it is: run the version that wrote it, or "
        f"set annotation {labels.REPLAN} of the ModelDeployment to a new value to plan anew, which restarts its pods",
    )
    return _with_model(
        dataclasses.replace(base, decided=Decided(model=model.finding, hardware=finding, plan=finding)), model
    )


def _keep(
    base: Decision, world: World, spec: ModelDeploymentSpec, frozen: FrozenPlan, model: ModelStep, settings: Settings
) -> Decision:
    """The spec is what was planned for: deploy the frozen plan, whatever a new plan would say."""
    outdated = outdated_by(world, spec, frozen, settings)
    decided = Decided(
        model=model.finding,
        hardware=hardware_finding(frozen),
        plan=planned_finding(frozen, outdated),
    )
    return _with_model(
        dataclasses.replace(
            base,
            decided=decided,
            outdated=outdated,
            deployment=build_deployment(world.owner, spec, frozen),
            obsolete_deployments=_others(world, spec),
        ),
        model,
    )


def _renew(
    base: Decision, world: World, spec: ModelDeploymentSpec, model: ModelStep, replan: str, settings: Settings
) -> Decision:
    """A new spec or an asked-for replan: plan, and until there is a plan only the number of pods changes."""
    if base.frozen is not None and base.frozen.pool_name == spec.pool.name:
        base = dataclasses.replace(base, deployment=build_deployment(world.owner, spec, base.frozen))
    if model.model is None or model.finding.status is not ConditionStatus.TRUE:
        return _with_model(dataclasses.replace(base, decided=Decided(model=model.finding)), model)
    step = make_plan(world, spec, model.model, replan, settings)
    decided = Decided(model=model.finding, hardware=step.hardware, plan=step.plan)
    if step.frozen is None:
        return _with_model(dataclasses.replace(base, decided=decided), model)
    return _with_model(
        dataclasses.replace(
            base,
            decided=decided,
            frozen=step.frozen,
            deployment=build_deployment(world.owner, spec, step.frozen),
            obsolete_deployments=_others(world, spec),
        ),
        model,
    )


def _with_model(decision: Decision, step: ModelStep) -> Decision:
    return dataclasses.replace(
        decision,
        model=step.model,
        inspect_pod=step.start,
        obsolete_pods=step.obsolete,
        requeue_seconds=step.requeue_seconds,
    )


def _others(world: World, spec: ModelDeploymentSpec) -> tuple[JsonObject, ...]:
    """Deployments of pools that left the spec, once they are in nobody's service any more.

    They answer until the new pool does; but where its pods find no node, the old ones may be what takes the room.
    """
    pods = [
        pod
        for pod in world.serving_pods()
        if pod["metadata"]["labels"].get(labels.POOL) == spec.pool.name and "deletionTimestamp" not in pod["metadata"]
    ]
    if spec.replicas > 0 and not any(is_ready(pod) or _finds_no_node(pod) for pod in pods):
        return ()
    name = deployment_name(world.owner.name, spec.pool.name)
    return tuple(item for item in world.owned_deployments() if item["metadata"]["name"] != name)


def _finds_no_node(pod: JsonObject) -> bool:
    trouble = scheduling_trouble(pod)
    return trouble is not None and trouble.reason == "Unschedulable"


def _explain(error: ValidationError) -> str:
    """Which fields this version of the operator does not understand, and why."""
    parts = [f"spec.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5]]
    return f"{'; '.join(parts)}. The installed CRD and this operator may be of different versions"
