"""Decide what to do about an inspection, from the inspect pods that are there. The pods are the only state.

A refusal that may go away by itself (a hub that does not answer) and an environment that failed (eviction, deadline)
are tried again with a growing delay. So is, seldom and without a word in status, what a user mends outside the spec (a
licence, a file that was not there); what only another spec can help (a dense model) waits for the spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from octavo_operator.api import labels
from octavo_operator.inspection.pods import (
    PodBody,
    Trouble,
    container_statuses,
    cut,
    evicted_trouble,
    image_trouble,
    scheduling_trouble,
    waiting_trouble,
)
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.termination import Refusal, TerminationReport

RETRY_BASE_SECONDS = 10
RETRY_CAP_SECONDS = 300
LARGEST_EXPONENT = 10
MENDABLE_REASONS = frozenset(
    {
        "SourceForbidden",
        "SourceNotFound",
        "ConfigMissing",
        "ShardMissing",
        "CheckpointCorrupt",
        "CheckpointUnreadable",
    }
)
"""Refusals about the world and not about the spec: nothing tells us when a user has mended it."""
AGAIN = f"tried again every {RETRY_CAP_SECONDS // 60} minutes, and at once when annotation {labels.REPLAN} changes"
"""Names no time, so that looking again in vain is no news."""


@dataclass(frozen=True)
class Found:
    """The checkpoint was read."""

    facts: ModelFacts
    image_ref: str
    """What the kubelet resolved the model image to; empty when it does not say or there is none."""


@dataclass(frozen=True)
class Start:
    """A pod has to be made. `previous` says why the attempt before failed."""

    attempt: int
    previous: Trouble | None = None


@dataclass(frozen=True)
class Running:
    """A pod is on its way; `trouble` says what holds it up, or why the attempt before it failed."""

    trouble: Trouble | None


@dataclass(frozen=True)
class Failed:
    """The last attempt failed. `retry_at` is None when only a change of the spec can help."""

    trouble: Trouble
    retry_at: datetime | None
    standing: bool = False
    """The trouble itself says when it is tried again, in the same words every time."""


Inspection = Found | Start | Running | Failed


def retry_delay(attempt: int) -> timedelta:
    """How long to wait after the n-th attempt (from 1): 10 s, 20 s, ... 5 min."""
    seconds = RETRY_BASE_SECONDS * 2 ** min(attempt - 1, LARGEST_EXPONENT)
    return timedelta(seconds=min(seconds, RETRY_CAP_SECONDS))


def attempt_of(pod: PodBody) -> int:
    """Which attempt a pod is."""
    text = (pod["metadata"].get("annotations") or {}).get(labels.ATTEMPT, "1")
    return int(text) if text.isdecimal() else 1


def decide(pods: Sequence[PodBody], model_image: str | None, now: datetime) -> Inspection:
    """`pods` are the inspect pods of this very inspection that are not being deleted."""
    if not pods:
        return Start(attempt=1)
    *_, before, latest = (None, *sorted(pods, key=attempt_of))
    assert latest is not None
    if not ended(latest):
        trouble = image_trouble(latest, model_image) or waiting_trouble(latest) or scheduling_trouble(latest)
        return Running(trouble or (None if before is None else failure_of(before, model_image)))
    report = TerminationReport.parse(_last_word(latest))
    if report is not None and report.facts is not None:
        return Found(report.facts, _image_ref(latest))
    trouble = failure_of(latest, model_image)
    refusal = None if report is None else report.refusal
    mendable = refusal is not None and _is_mendable(refusal)
    if refusal is not None and not refusal.retryable and not mendable:
        return Failed(trouble, retry_at=None)
    delay = timedelta(seconds=RETRY_CAP_SECONDS) if mendable else retry_delay(attempt_of(latest))
    due = _ended_at(latest, now) + delay
    if now >= due:
        return Start(attempt_of(latest) + 1, previous=trouble)
    return Failed(trouble, retry_at=due, standing=mendable)


def ended(pod: PodBody) -> bool:
    """Whether nothing of the pod will run any more."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def failure_of(pod: PodBody, model_image: str | None) -> Trouble:
    """Why an ended pod brought no facts."""
    report = TerminationReport.parse(_last_word(pod))
    if report is not None and report.refusal is not None:
        again = f"; {AGAIN}" if _is_mendable(report.refusal) else ""
        return Trouble(report.refusal.reason, report.refusal.message + again)
    return _environment_trouble(pod, model_image)


def _is_mendable(refusal: Refusal) -> bool:
    return refusal.reason in MENDABLE_REASONS and not refusal.retryable


def _last_word(pod: PodBody) -> str:
    for status in container_statuses(pod):
        terminated = (status.get("state") or {}).get("terminated") or {}
        if terminated:
            return str(terminated.get("message", ""))
    return ""


def _environment_trouble(pod: PodBody, model_image: str | None) -> Trouble:
    """A pod that ended without a word of ours."""
    for status in container_statuses(pod):
        terminated = (status.get("state") or {}).get("terminated") or {}
        if terminated.get("reason") == "OOMKilled":
            return Trouble("InspectFailed", "the inspect pod ran out of memory")
        if terminated:
            word = cut(terminated.get("message", "")) or "it left no message"
            return Trouble("InspectFailed", f"octavo inspect ended with code {terminated.get('exitCode')}: {word}")
    trouble = image_trouble(pod, model_image) or evicted_trouble(pod)
    return trouble or Trouble("InspectFailed", "the inspect pod ended without a message")


def _image_ref(pod: PodBody) -> str:
    for status in container_statuses(pod):
        for mount in status.get("volumeMounts") or ():
            reference = ((mount.get("volumeStatus") or {}).get("image") or {}).get("imageRef")
            if reference:
                return str(reference)
    return ""


def _ended_at(pod: PodBody, now: datetime) -> datetime:
    """The latest time that the pod's status knows; `now` when it knows none."""
    times = [(status.get("state") or {}).get("terminated", {}).get("finishedAt") for status in container_statuses(pod)]
    times += [condition.get("lastTransitionTime") for condition in pod.get("status", {}).get("conditions") or ()]
    known = [parse_time(text) for text in times if text]
    return max(known, default=now)


def parse_time(text: str) -> datetime:
    """An API time such as 2026-01-02T03:04:05Z."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
