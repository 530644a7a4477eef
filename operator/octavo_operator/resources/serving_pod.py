"""The pod template that serves a planned model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_operator.api import labels
from octavo_operator.api.digest import digest
from octavo_operator.api.hardware import CpuFacts, GpuFacts
from octavo_operator.api.quantity import mebibytes
from octavo_operator.api.source import Source
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.planning.plan import Plan
from octavo_operator.resources import pod
from octavo_operator.resources.checkpoint import (
    MODEL_DIRECTORY,
    VOLUME_NAME,
    CheckpointMount,
    hub_token,
    mount_of,
    pull_secrets,
)
from octavo_operator.resources.ownership import Manifest, Owner
from octavo_runtime.contract import endpoints
from octavo_runtime.contract.container import DRAIN_ANNOUNCE_SECONDS, DRAIN_GRACE_MARGIN_SECONDS, HTTP_PORT
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.launch import LaunchFlags

CONTAINER = "server"
FETCH_CONTAINER = "fetch"
HTTP_PORT_NAME = "http"

STARTUP_BASE_SECONDS = 300
"""Imports, kernels and warm-up on a busy machine."""
LOAD_BYTES_PER_SECOND = 100_000_000
"""A slow disk or a slow conversion. Too long a deadline delays a diagnosis, too short a one kills a loading pod."""
CPU_REQUEST = "500m"
"""Default CPU request of a CPU pod: two replicas and a rollout fit a small machine; engine.resources says more."""
GPU_POD_REQUESTS = {"cpu": "2", "memory": "8Gi"}
"""Host side of a GPU pod: HTTP, tokeniser, and staging of one layer while loading."""
CPU_SHARED_MEMORY_BYTES = 256 * 2**20
GPU_SHARED_MEMORY_BYTES_PER_RANK = 2**30
CACHE_BYTES = 2 * 2**30
"""Local disk for compiled kernels and temporary files."""
FETCH_MARGIN = 1.02
"""Tokenizer, configuration and file-system overhead beside the tensors."""


@dataclass(frozen=True)
class Serving:
    """Everything that the pod template is made from."""

    owner: Owner
    spec: ModelDeploymentSpec
    source: Source
    """Resolved: a commit or digest where one is known."""
    image: str
    facts: ModelFacts
    plan: Plan

    @property
    def on_cpu(self) -> bool:
        """Whether the pool has no accelerator."""
        return isinstance(self.plan.hardware, CpuFacts)

    def flags(self) -> LaunchFlags:
        """The plan as arguments of `octavo serve`."""
        hardware = self.plan.hardware
        gpu = hardware if isinstance(hardware, GpuFacts) else None
        return LaunchFlags(
            model=MODEL_DIRECTORY,
            served_model_name=self.spec.model.served_name or self.owner.name,
            weights=self.plan.precision.weights,
            kv_cache_dtype=self.plan.precision.kv,
            max_model_len=self.plan.max_model_len,
            max_num_seqs=self.plan.max_concurrent_requests,
            kv_cache_memory_bytes=self.plan.memory.kv_cache,
            tensor_parallel_size=self.plan.ranks,
            drain_seconds=self.spec.rollout.drain_seconds,
            expect_compute_capability=gpu.capability if gpu else None,
            expect_memory_mib=gpu.memory_mib if gpu else None,
        )


def startup_seconds(facts: ModelFacts) -> int:
    """How long a pod may take from its start until it is ready, from the bytes it loads."""
    return STARTUP_BASE_SECONDS + facts.checkpoint_bytes // LOAD_BYTES_PER_SECOND


def grace_seconds(drain_seconds: int) -> int:
    """terminationGracePeriodSeconds: announce, drain, and a margin before SIGKILL."""
    return DRAIN_ANNOUNCE_SECONDS + drain_seconds + DRAIN_GRACE_MARGIN_SECONDS


def build_pod_template(serving: Serving) -> Manifest:
    """The template, labelled with its own hash: pods of this plan can be told from older ones."""
    spec = _pod_spec(serving)
    metadata_labels = {
        **labels.common(serving.owner.name, labels.COMPONENT_SERVER),
        labels.POOL: serving.spec.pool.name,
        labels.STATE: labels.STATE_SERVING,
        labels.PLAN: digest(spec),
    }
    return {"metadata": {"labels": metadata_labels}, "spec": spec}


def _pod_spec(serving: Serving) -> Manifest:
    spec, pool = serving.spec, serving.spec.pool
    mount = mount_of(serving.source)
    secret = spec.model.secret_ref.name if spec.model.secret_ref else None
    result: Manifest = {
        "serviceAccountName": serving.owner.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(spec.rollout.drain_seconds),
        "securityContext": pod.pod_security(),
        "topologySpreadConstraints": [_spread(serving)],
        "containers": [_server(serving, mount)],
        "volumes": [pod.scratch_volume(), _shared_memory(serving), *mount.volumes],
    }
    if mount.fetch is not None:
        result["initContainers"] = [_fetch(serving, mount.fetch)]
    secrets = pull_secrets(serving.source, secret)
    if secrets:
        result["imagePullSecrets"] = secrets
    if pool.node_selector:
        result["nodeSelector"] = dict(pool.node_selector)
    tolerations = pod.tolerations(pool, gpu=not serving.on_cpu)
    if tolerations:
        result["tolerations"] = tolerations
    if pool.runtime_class_name:
        result["runtimeClassName"] = pool.runtime_class_name
    affinity = _class_affinity(serving)
    if affinity:
        result["affinity"] = affinity
    return result


def _spread(serving: Serving) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": labels.HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels.serving_selector(serving.owner.name, serving.spec.pool.name)},
    }


def _class_affinity(serving: Serving) -> Manifest | None:
    """Only nodes of the planned hardware class; what the nodes say of themselves, never a product name."""
    hardware = serving.plan.hardware
    if isinstance(hardware, CpuFacts) or not hardware.labelled:
        return None
    resource = serving.spec.pool.resource_name or labels.GPU_RESOURCE
    planned = {
        labels.NODE_COMPUTE_MAJOR: hardware.capability.major,
        labels.NODE_COMPUTE_MINOR: hardware.capability.minor,
        labels.node_memory_label(resource): hardware.memory_mib,
    }
    expressions = [{"key": key, "operator": "In", "values": [str(value)]} for key, value in planned.items()]
    terms = [{"matchExpressions": expressions}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _shared_memory(serving: Serving) -> Manifest:
    size = CPU_SHARED_MEMORY_BYTES if serving.on_cpu else GPU_SHARED_MEMORY_BYTES_PER_RANK * serving.plan.ranks
    return {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": mebibytes(size)}}


def _server(serving: Serving, mount: CheckpointMount) -> Manifest:
    deadline = startup_seconds(serving.facts)
    period = 2 if deadline <= 600 else 10
    return {
        "name": CONTAINER,
        "image": serving.image,
        "command": [pod.COMMAND],
        "args": [*serving.flags().to_argv(), *serving.spec.engine.extra_args],
        "env": pod.environment(serving.spec.engine.env),
        "ports": [{"name": HTTP_PORT_NAME, "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "resources": _resources(serving),
        "securityContext": pod.container_security(read_only_root=serving.on_cpu),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": _probe(endpoints.READY, period=period, timeout=5, failures=-(-deadline // period)),
        "readinessProbe": _probe(endpoints.READY, period=5, timeout=5, failures=2),
        "livenessProbe": _probe(endpoints.HEALTH, period=10, timeout=10, failures=6),
        "lifecycle": {"preStop": {"exec": {"command": _drain(serving.spec.rollout.drain_seconds)}}},
        "volumeMounts": [
            *pod.scratch_mounts(),
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 (a path inside the container)
            *mount.mounts,
        ],
    }


def _drain(drain_seconds: int) -> list[str]:
    """The preStop hook; it ends when nothing is in flight, at the latest after announce and drain time."""
    return [pod.COMMAND, "drain", f"--timeout-seconds={DRAIN_ANNOUNCE_SECONDS + drain_seconds}"]


def _probe(path: str, *, period: int, timeout: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": HTTP_PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def _resources(serving: Serving) -> Manifest:
    """The planned requests and limits with the user's over them."""
    requests: dict[str, Any] = dict(GPU_POD_REQUESTS)
    limits: dict[str, Any] = {}
    if serving.on_cpu:
        memory = mebibytes(serving.plan.memory.total)
        requests = {"cpu": CPU_REQUEST, "memory": memory}
        limits = {"memory": memory}
    else:
        limits = {serving.spec.pool.resource_name or labels.GPU_RESOURCE: str(serving.plan.ranks)}
        requests.update(limits)
    if serving.plan.hardware.ephemeral_storage:
        requests["ephemeral-storage"] = mebibytes(_local_disk_bytes(serving))
    asked = serving.spec.engine.resources
    requests.update({key: str(value) for key, value in asked.requests.items()})
    limits.update({key: str(value) for key, value in asked.limits.items()})
    return {"requests": requests, "limits": limits}


def _local_disk_bytes(serving: Serving) -> int:
    fetched = mount_of(serving.source).fetch is not None
    return CACHE_BYTES + (int(serving.facts.checkpoint_bytes * FETCH_MARGIN) if fetched else 0)


def _fetch(serving: Serving, source: str) -> Manifest:
    """Copies the checkpoint from the hub into the pod's volume; a restart goes on where it stopped."""
    spec = serving.spec
    secret = spec.model.secret_ref.name if spec.model.secret_ref else None
    return {
        "name": FETCH_CONTAINER,
        "image": serving.image,
        "command": [pod.COMMAND],
        "args": ["fetch", source, MODEL_DIRECTORY],
        "env": pod.environment(spec.engine.env, *hub_token(serving.source, secret)),
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": pod.container_security(read_only_root=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*pod.scratch_mounts(), {"name": VOLUME_NAME, "mountPath": MODEL_DIRECTORY}],
    }
