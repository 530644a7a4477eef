"""Group, version, label and annotation keys: every name that the operator writes into a cluster, once."""

GROUP = "serving.octavo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ModelDeployment"
PLURAL = "modeldeployments"

FIELD_MANAGER = "octavo-operator"
"""The one server-side-apply manager; two managers of one child would fight over its replicas."""

MODEL = f"{GROUP}/model"
"""Label: name of the ModelDeployment in the same namespace that the object belongs to."""
POOL = f"{GROUP}/pool"
"""Label: name of the pool that a serving pod runs in."""
STATE = f"{GROUP}/state"
"""Label on serving pods. Service and ReplicaSet select `serving`, so that a changed value takes a pod out of both."""
STATE_SERVING = "serving"
PLAN = f"{GROUP}/plan"
"""Label: hash of the pod template that a serving pod was made from; tells this plan's pods from older ones."""
COMPONENT = "app.kubernetes.io/component"
COMPONENT_SERVER = "server"
COMPONENT_INSPECT = "inspect"

REPLAN = f"{GROUP}/replan"
"""Annotation on a ModelDeployment: any new value makes the operator look at model and hardware again and plan anew."""
FROZEN_PLAN = f"{GROUP}/frozen-plan"
"""Annotation on a Deployment: what was resolved and planned, as JSON; kept until the spec changes or REPLAN does."""
APPLIED = f"{GROUP}/applied"
"""Annotation on every child: hash of what was applied last, so that a dropped field is noticed without a write."""
ATTEMPT = f"{GROUP}/attempt"
"""Annotation on an inspect pod: which attempt it is, from 1."""
INSPECTION = f"{GROUP}/inspection"
"""Label on an inspect pod: hash of what is inspected and how."""

GPU_RESOURCE = "nvidia.com/gpu"
"""Extended resource of whole NVIDIA GPUs, and the key of the taint that keeps other pods off GPU nodes."""
NODE_COMPUTE_MAJOR = "nvidia.com/gpu.compute.major"
NODE_COMPUTE_MINOR = "nvidia.com/gpu.compute.minor"
NODE_GPU_REPLICAS = "nvidia.com/gpu.replicas"
HOSTNAME = "kubernetes.io/hostname"


def node_memory_label(resource_name: str) -> str:
    """Node label with the MiB of one `resource_name` device, e.g. `nvidia.com/gpu.memory`."""
    return f"{resource_name}.memory"


def common(model: str, component: str) -> dict[str, str]:
    """Labels of every object that belongs to ModelDeployment `model`."""
    return {
        "app.kubernetes.io/name": "octavo",
        "app.kubernetes.io/instance": model,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        COMPONENT: component,
        MODEL: model,
    }


def serving_selector(model: str, pool: str | None = None) -> dict[str, str]:
    """Labels by which Service (whole model) and ReplicaSet (one pool) find the pods that take traffic."""
    selector = {MODEL: model, STATE: STATE_SERVING}
    return selector if pool is None else {**selector, POOL: pool}
