"""The status document, whole."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from octavo_operator.api.labels import serving_selector
from octavo_operator.api.status import (
    ConditionType,
    ModelDeploymentStatus,
    ModelStatus,
    PlanStatus,
)
from octavo_operator.status.findings import Finding, condition
from octavo_operator.status.workload import Workload


def previous_status(body: Mapping[str, Any]) -> ModelDeploymentStatus:
    """The status that is there; an empty one when there is none or another version wrote it."""
    try:
        return ModelDeploymentStatus.model_validate(body.get("status") or {})
    except ValidationError:
        return ModelDeploymentStatus()


def build_status(
    previous: ModelDeploymentStatus,
    findings: Mapping[ConditionType, Finding],
    *,
    name: str,
    generation: int,
    wanted: int,
    now: datetime,
    workload: Workload | None,
    model: ModelStatus | None,
    plan: PlanStatus | None,
    url: str | None,
) -> ModelDeploymentStatus:
    """Everything that status says, of this generation."""
    ready = 0 if workload is None else workload.ready
    return ModelDeploymentStatus(
        observed_generation=generation,
        conditions=tuple(
            condition(kind, finding, previous.condition(kind), generation, now) for kind, finding in findings.items()
        ),
        replicas=0 if workload is None else len(workload.alive),
        ready_replicas=ready,
        replica_summary=f"{ready}/{wanted}",
        selector=",".join(f"{key}={value}" for key, value in serving_selector(name).items()),
        url=url,
        model=model,
        plan=plan,
    )


def to_document(status: ModelDeploymentStatus) -> dict[str, Any]:
    """As it is written: absent instead of null."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
