"""Why a pod does not run, in one reason and one sentence: what inspect and serving pods have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from octavo_runtime.contract.termination import TerminationReport

PodBody = Mapping[str, Any]

IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing", ""})
NOT_FOUND_MARKS = ("not found", "manifest unknown", "NotFound", "404", "does not exist", "name unknown")
BACK_OFF_MARK = "ErrImagePull: "
"""A back-off repeats the error after this mark; cutting it off keeps the message the same while kubelet retries."""
MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
"""The only claim that our pods name is the model's."""
MESSAGE_LIMIT = 1000


@dataclass(frozen=True)
class Trouble:
    """What keeps a pod from running."""

    reason: str
    message: str


def cut(text: str) -> str:
    """One line of bounded length; the end is kept, because errors end with their cause."""
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_LIMIT else "..." + line[-MESSAGE_LIMIT:]


def container_statuses(pod: PodBody) -> Iterator[Mapping[str, Any]]:
    """Statuses of init containers, then of containers."""
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def terminations(pod: PodBody) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(container, terminated state) of every container that ended badly, now or before its last restart."""
    for status in container_statuses(pod):
        for state in ("state", "lastState"):
            terminated = (status.get(state) or {}).get("terminated")
            if terminated and terminated.get("exitCode", 0) != 0:
                yield status["name"], terminated
                break


def refusal_of(pod: PodBody) -> Trouble | None:
    """What a container of ours said when it refused to run."""
    for _, terminated in terminations(pod):
        report = TerminationReport.parse(terminated.get("message", ""))
        if report is not None and report.refusal is not None:
            return Trouble(report.refusal.reason, report.refusal.message)
    return None


def image_trouble(pod: PodBody, model_image: str | None) -> Trouble | None:
    """An image that cannot be had; the model's own image is named as the source that it is."""
    for status in container_statuses(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in IMAGE_REASONS:
            continue
        message = waiting.get("message", "")
        detail = cut(message.rpartition(BACK_OFF_MARK)[2])
        if model_image is not None and model_image in message:
            if any(mark in message for mark in NOT_FOUND_MARKS):
                return Trouble(
                    "SourceNotFound",
                    f"spec.model.source oci://{model_image} does not exist; check name and tag: {detail}",
                )
            return Trouble("SourceUnavailable", f"spec.model.source oci://{model_image} cannot be pulled: {detail}")
        image = status.get("image") or "?"
        return Trouble("ImagePullFailed", f"image {image} of container {status['name']} cannot be pulled: {detail}")
    return None


def waiting_trouble(pod: PodBody) -> Trouble | None:
    """Any other reason for which a container waits, e.g. CreateContainerConfigError."""
    for status in container_statuses(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in STARTING_REASONS or reason in IMAGE_REASONS or reason == "CrashLoopBackOff":
            continue
        return Trouble(reason, f"container {status['name']} waits: {cut(waiting.get('message', reason))}")
    return None


def scheduling_trouble(pod: PodBody) -> Trouble | None:
    """The scheduler's own words, when it found no node."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = cut(condition.get("message", ""))
            if MISSING_CLAIM.search(message):
                return Trouble("SourceNotFound", f"spec.model.source names a claim that is not there: {message}")
            return Trouble("Unschedulable", f"no node takes the pod: {message}")
    return None


def evicted_trouble(pod: PodBody) -> Trouble | None:
    """A pod that the kubelet ended as a whole: deadline, eviction, preemption, admission."""
    status = pod.get("status", {})
    if status.get("phase") == "Failed" and status.get("reason"):
        return Trouble(status["reason"], cut(status.get("message") or f"the kubelet ended the pod: {status['reason']}"))
    return None
