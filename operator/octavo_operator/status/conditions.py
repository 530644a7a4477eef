"""The conditions, from what was decided before the workload and from the workload itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from octavo_operator.api.status import ConditionStatus, ConditionType
from octavo_operator.inspection.pods import Trouble
from octavo_operator.status.findings import Finding, no, unknown, yes
from octavo_operator.status.workload import Workload, trouble_of

NOT_YET = "Waiting"


@dataclass(frozen=True)
class Decided:
    """Findings of the steps before the workload; None for a step that was not reached."""

    model: Finding | None = None
    hardware: Finding | None = None
    plan: Finding | None = None
    blocked: Trouble | None = None
    """A child that could not be applied: its name is taken, or the API server refused it."""


def conditions(decided: Decided, workload: Workload | None, wanted: int) -> Mapping[ConditionType, Finding]:
    """All conditions. `workload` is None until there is a plan to deploy; `wanted` is spec.replicas."""
    steps = {
        ConditionType.MODEL_INSPECTED: decided.model or unknown(NOT_YET, "not looked at yet"),
        ConditionType.HARDWARE_RECOGNIZED: decided.hardware or unknown(NOT_YET, "waits for the model's facts"),
        ConditionType.PLANNED: decided.plan or unknown(NOT_YET, "waits for model and hardware"),
    }
    available, progressing = _workload(decided, workload, wanted)
    ready = _ready(steps, decided, workload, available)
    return {
        ConditionType.READY: ready,
        **steps,
        ConditionType.WORKLOAD_AVAILABLE: available,
        ConditionType.PROGRESSING: progressing,
    }


def _workload(decided: Decided, workload: Workload | None, wanted: int) -> tuple[Finding, Finding]:
    """(WorkloadAvailable, Progressing)."""
    if decided.blocked is not None:
        return (
            no(decided.blocked.reason, decided.blocked.message),
            no(decided.blocked.reason, "blocked until the cause is gone"),
        )
    if workload is None:
        return unknown(NOT_YET, "waits for a plan"), no(NOT_YET, "nothing is deployed")
    if not workload.observed:
        waiting = "the Deployment's controller has not seen this generation yet"
        return unknown("Observing", waiting), yes("Observing", waiting)
    ready, older = workload.ready, workload.ready_before
    count = f"{ready} of {wanted} pods ready"
    trouble = trouble_of(workload) if ready < wanted else None
    if wanted == 0:
        settled = not workload.alive
        moving = yes("ScalingDown", "pods are ending") if not settled else no("Settled", "no pod is wanted")
        return no("ScaledToZero", "spec.replicas is 0"), moving
    if trouble is not None:
        progressing = no(trouble.reason, trouble.message)
    elif ready < wanted or len(workload.alive) != wanted:
        progressing = yes("RollingOut", "pods are being started, replaced or ended")
    else:
        progressing = no("Settled", "all wanted pods are ready")
    if ready > 0:
        return yes("PodsReady", count if ready < wanted else f"all {wanted} pods ready"), progressing
    aside = f"; {older} pods of the plan before still answer" if older else ""
    if trouble is not None:
        return no(trouble.reason, trouble.message + aside), progressing
    return no("Starting", f"{count}: pods are starting or loading the model{aside}"), progressing


def _ready(
    steps: Mapping[ConditionType, Finding], decided: Decided, workload: Workload | None, available: Finding
) -> Finding:
    """The first step that is not true gives the reason; pods of an older plan do not make a new generation ready.

    Unrecognised hardware for which there is a plan all the same (the safe one) is worth a condition, not an outage.
    """
    planned = steps[ConditionType.PLANNED].status is ConditionStatus.TRUE
    if decided.blocked is not None:
        return no(decided.blocked.reason, decided.blocked.message)
    for kind, finding in steps.items():
        if kind is ConditionType.HARDWARE_RECOGNIZED and planned:
            continue
        if finding.status is not ConditionStatus.TRUE:
            answering = 0 if workload is None else workload.ready + workload.ready_before
            aside = f"; {answering} pods of the plan before still answer" if answering else ""
            return dataclasses.replace(finding, message=finding.message + aside)
    if workload is None:
        return no(available.reason, available.message)
    if available.status is ConditionStatus.UNKNOWN:
        return unknown(available.reason, available.message)
    if available.status is ConditionStatus.TRUE:
        return yes("Serving", available.message)
    return no(available.reason, available.message)
