"""Findings: conditions before they know their generation and transition time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from octavo_operator.api.status import Condition, ConditionStatus, ConditionType

MESSAGE_LIMIT = 2048


@dataclass(frozen=True)
class Finding:
    """One condition's content."""

    status: ConditionStatus
    reason: str
    message: str


def yes(reason: str, message: str) -> Finding:
    """True."""
    return Finding(ConditionStatus.TRUE, reason, message)


def no(reason: str, message: str) -> Finding:
    """False."""
    return Finding(ConditionStatus.FALSE, reason, message)


def unknown(reason: str, message: str) -> Finding:
    """Unknown: not looked at yet."""
    return Finding(ConditionStatus.UNKNOWN, reason, message)


def timestamp(moment: datetime) -> str:
    """As the API writes times: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    kind: ConditionType, finding: Finding, previous: Condition | None, generation: int, now: datetime
) -> Condition:
    """The condition; its transition time moves only when the status does."""
    unchanged = previous is not None and previous.status == finding.status
    return Condition(
        type=kind.value,
        status=finding.status,
        reason=finding.reason,
        message=finding.message[:MESSAGE_LIMIT],
        observed_generation=generation,
        last_transition_time=previous.last_transition_time if unchanged and previous else timestamp(now),
    )
