"""Which changes of conditions are worth an event. Pure."""

from __future__ import annotations

from octavo_operator.api.status import ConditionStatus, ConditionType, ModelDeploymentStatus
from octavo_operator.cluster.events import Announcement

ANNOUNCED = (
    ConditionType.MODEL_INSPECTED,
    ConditionType.HARDWARE_RECOGNIZED,
    ConditionType.PLANNED,
    ConditionType.READY,
)
"""WorkloadAvailable is left out: Ready says the same when the pods are what matters."""
PROGRESS_REASONS = frozenset({"Starting", "Observing", "Inspecting", "Waiting"})
"""Steps on the way that nobody wants an event for."""


def announcements(before: ModelDeploymentStatus, after: ModelDeploymentStatus) -> list[Announcement]:
    """One per condition whose status or reason changed; a cause that Ready only repeats is said once."""
    result: list[Announcement] = []
    said: set[str] = set()
    for kind in ANNOUNCED:
        old, new = before.condition(kind), after.condition(kind)
        if new is None or new.status is ConditionStatus.UNKNOWN or new.reason in PROGRESS_REASONS:
            continue
        if old is not None and (old.status, old.reason) == (new.status, new.reason):
            said.add(new.reason)
            continue
        if new.reason in said:
            continue
        said.add(new.reason)
        warning = new.status is ConditionStatus.FALSE and new.reason != "ScaledToZero"
        result.append(Announcement(new.reason, new.message, kind.value, warning))
    return result
