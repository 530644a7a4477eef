"""The pod that reads a checkpoint's config and tensor headers and says in its termination message what it found.

It needs no accelerator. It prefers the pool's nodes, so that a model image lands where it is served, but runs anywhere.
"""

from __future__ import annotations

from typing import Any

from octavo_operator.api import labels
from octavo_operator.api.digest import digest
from octavo_operator.api.source import HubSource, parse_source
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.resources import pod
from octavo_operator.resources.checkpoint import MODEL_DIRECTORY, hub_token, mount_of, pull_secrets
from octavo_operator.resources.ownership import Manifest, Owner

CONTAINER = "inspect"
DEADLINE_SECONDS = 900
"""From the moment a node has taken the pod; covers a first pull of the runtime image."""
PREFERENCE_WEIGHT = 50


def build_inspect_pod(owner: Owner, spec: ModelDeploymentSpec, image: str, replan: str, attempt: int) -> Manifest:
    """The pod of the n-th attempt; its name says what is inspected, so that a changed spec makes another pod."""
    template = _pod_spec(owner, spec, image)
    inspection = digest([template, replan])
    metadata = owner.metadata(
        f"{owner.name}-inspect-{inspection[:8]}-{attempt}",
        labels.COMPONENT_INSPECT,
        {labels.ATTEMPT: str(attempt)},
    )
    metadata["labels"][labels.INSPECTION] = inspection
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template}


def _pod_spec(owner: Owner, spec: ModelDeploymentSpec, image: str) -> Manifest:
    source = parse_source(spec.model.source)
    secret = spec.model.secret_ref.name if spec.model.secret_ref else None
    on_hub = isinstance(source, HubSource)
    mount = mount_of(source)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "command": [pod.COMMAND],
        "args": ["inspect", "--json", str(source) if on_hub else MODEL_DIRECTORY],
        "env": pod.environment(spec.engine.env, *hub_token(source, secret)),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": pod.container_security(read_only_root=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*pod.scratch_mounts(), *([] if on_hub else mount.mounts)],
    }
    result: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "terminationGracePeriodSeconds": 5,
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod.pod_security(),
        "tolerations": pod.tolerations(spec.pool, gpu=True),
        "containers": [container],
        "volumes": [pod.scratch_volume(), *([] if on_hub else mount.volumes)],
    }
    secrets = pull_secrets(source, secret)
    if secrets:
        result["imagePullSecrets"] = secrets
    if spec.pool.node_selector:
        result["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_preference(spec)]}}
    return result


def _preference(spec: ModelDeploymentSpec) -> Manifest:
    expressions = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(spec.pool.node_selector.items())
    ]
    return {"weight": PREFERENCE_WEIGHT, "preference": {"matchExpressions": expressions}}
