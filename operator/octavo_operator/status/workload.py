"""What the serving pods do: how many of this plan's are ready, and if none is, the first reason that matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_operator.api import labels
from octavo_operator.api.source import ImageSource, Source
from octavo_operator.api.status import MemoryStatus
from octavo_operator.inspection.pods import (
    PodBody,
    Trouble,
    cut,
    evicted_trouble,
    image_trouble,
    refusal_of,
    scheduling_trouble,
    terminations,
    waiting_trouble,
)

GIB = 2**30


@dataclass(frozen=True)
class Workload:
    """A pool's Deployment and its pods."""

    deployment: Mapping[str, Any] | None
    """As the API server has it; None before it exists."""
    pods: Sequence[PodBody]
    """Serving pods of the model, quarantined ones left out."""
    plan_label: str
    """Value of the plan label on pods of the plan that is deployed."""
    source: Source
    memory: MemoryStatus | None

    @property
    def alive(self) -> list[PodBody]:
        """Pods that are not on their way out and have not ended."""
        return [
            pod
            for pod in self.pods
            if "deletionTimestamp" not in pod["metadata"]
            and pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}
        ]

    @property
    def current(self) -> list[PodBody]:
        """Pods of the plan that is deployed, ended ones included: they say why."""
        return [
            pod
            for pod in self.pods
            if "deletionTimestamp" not in pod["metadata"]
            and (pod["metadata"].get("labels") or {}).get(labels.PLAN) == self.plan_label
        ]

    @property
    def ready(self) -> int:
        """Ready pods of this plan."""
        return sum(is_ready(pod) for pod in self.current)

    @property
    def ready_before(self) -> int:
        """Ready pods of older plans, which still answer during a rollout."""
        return sum(is_ready(pod) for pod in self.alive) - self.ready

    @property
    def observed(self) -> bool:
        """Whether the Deployment's controller has seen what we applied last."""
        if self.deployment is None:
            return False
        seen = self.deployment.get("status", {}).get("observedGeneration", 0)
        return bool(seen >= self.deployment["metadata"].get("generation", 0))


def is_ready(pod: PodBody) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def trouble_of(workload: Workload) -> Trouble | None:
    """The first reason, in this order, that any pod of the plan gives; then what the Deployment says."""
    image = workload.source.reference if isinstance(workload.source, ImageSource) else None
    checks: tuple[Callable[[PodBody], Trouble | None], ...] = (
        lambda pod: _out_of_memory(pod, workload.memory),
        refusal_of,
        lambda pod: image_trouble(pod, image),
        waiting_trouble,
        _crash,
        scheduling_trouble,
        evicted_trouble,
    )
    pods = [pod for pod in workload.current if not is_ready(pod)]
    for check in checks:
        for pod in pods:
            trouble = check(pod)
            if trouble is not None:
                return Trouble(trouble.reason, f"pod {pod['metadata']['name']}: {trouble.message}")
    return _deployment_trouble(workload.deployment)


def _out_of_memory(pod: PodBody, memory: MemoryStatus | None) -> Trouble | None:
    for container, terminated in terminations(pod):
        if terminated.get("reason") != "OOMKilled":
            continue
        planned = ""
        if memory is not None:
            weights = memory.routed_experts + memory.embeddings + memory.other_weights
            planned = (
                f"; planned were {memory.total / GIB:.2f} GiB: weights {weights / GIB:.2f}, "
                f"KV cache {memory.kv_cache / GIB:.2f}, activations {memory.activations / GIB:.2f}, "
                f"runtime {memory.runtime / GIB:.2f}"
            )
        advice = "lower context.maxConcurrentRequests or maxModelLen, or raise engine.resources.limits.memory"
        return Trouble("OOMKilled", f"container {container} was killed for memory{planned}; {advice}")
    return None


def _crash(pod: PodBody) -> Trouble | None:
    for container, terminated in terminations(pod):
        word = cut(terminated.get("message", "")) or terminated.get("reason", "no message")
        return Trouble("Crashed", f"container {container} ended with code {terminated.get('exitCode')}: {word}")
    return None


def _deployment_trouble(deployment: Mapping[str, Any] | None) -> Trouble | None:
    conditions = {c["type"]: c for c in (deployment or {}).get("status", {}).get("conditions") or ()}
    failure = conditions.get("ReplicaFailure", {})
    if failure.get("status") == "True":
        return Trouble("ReplicaFailure", f"pods cannot be made: {cut(failure.get('message', ''))}")
    progressing = conditions.get("Progressing", {})
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        return Trouble("ProgressDeadlineExceeded", cut(progressing.get("message", "the rollout does not end")))
    return None
