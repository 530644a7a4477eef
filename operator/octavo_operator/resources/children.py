"""Deployment, Service and ServiceAccount of a ModelDeployment."""

from __future__ import annotations

from octavo_operator.api import labels
from octavo_operator.api.digest import digest
from octavo_operator.api.spec import Accelerator, ModelDeploymentSpec
from octavo_operator.resources.frozen import FrozenPlan
from octavo_operator.resources.ownership import Manifest, Owner
from octavo_operator.resources.serving_pod import HTTP_PORT_NAME, grace_seconds, startup_seconds

SERVICE_PORT = 80
PULL_SECONDS = 900
"""What a rollout may take beside loading: image pull and scheduling."""
REVISION_HISTORY = 3


def deployment_name(model: str, pool: str) -> str:
    """One Deployment per pool."""
    return f"{model}-{pool}"


def service_url(owner: Owner) -> str:
    """Address of the OpenAI API inside the cluster."""
    return f"http://{owner.name}.{owner.namespace}.svc"


def seal(manifest: Manifest) -> Manifest:
    """`manifest` with the hash of its own content, by which a dropped field is noticed before the next apply."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), labels.APPLIED: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def build_service_account(owner: Owner) -> Manifest:
    """An identity without any permission; pods do not mount its token."""
    return seal(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": owner.metadata(owner.name, labels.COMPONENT_SERVER),
            "automountServiceAccountToken": False,
        }
    )


def build_service(owner: Owner) -> Manifest:
    """ClusterIP over the serving pods of all pools."""
    return seal(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": owner.metadata(owner.name, labels.COMPONENT_SERVER),
            "spec": {
                "type": "ClusterIP",
                "selector": labels.serving_selector(owner.name),
                "ports": [
                    {"name": HTTP_PORT_NAME, "port": SERVICE_PORT, "protocol": "TCP", "targetPort": HTTP_PORT_NAME}
                ],
            },
        }
    )


def build_deployment(owner: Owner, spec: ModelDeploymentSpec, frozen: FrozenPlan) -> Manifest:
    """The pool's Deployment: the frozen template, and everything around it that changes no pod.

    On GPU pools a rollout takes a pod away before it adds one, because a spare GPU is the exception.
    """
    pool = spec.pool
    on_cpu = pool.accelerator is Accelerator.NONE
    metadata = owner.metadata(
        deployment_name(owner.name, pool.name), labels.COMPONENT_SERVER, {labels.FROZEN_PLAN: frozen.to_json()}
    )
    metadata["labels"][labels.POOL] = pool.name
    rolling = {"maxSurge": 1, "maxUnavailable": 0} if on_cpu else {"maxSurge": 0, "maxUnavailable": 1}
    deadline = _startup_seconds(frozen) + grace_seconds(spec.rollout.drain_seconds) + PULL_SECONDS
    return seal(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": spec.replicas,
                "selector": {"matchLabels": labels.serving_selector(owner.name, pool.name)},
                "revisionHistoryLimit": REVISION_HISTORY,
                "progressDeadlineSeconds": deadline,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
                "template": frozen.template,
            },
        }
    )


def _startup_seconds(frozen: FrozenPlan) -> int:
    """How long a pod may take until it is ready; from its own probe where the facts are not understood."""
    if frozen.facts is not None:
        return startup_seconds(frozen.facts)
    containers = frozen.template.get("spec", {}).get("containers") or ()
    probes = [container.get("startupProbe") or {} for container in containers]
    # 10 s and 3 failures are the API's own defaults.
    return max((int(p.get("periodSeconds", 10)) * int(p.get("failureThreshold", 3)) for p in probes), default=0)
