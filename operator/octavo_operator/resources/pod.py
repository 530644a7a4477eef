"""What inspect and serving pods have in common: Pod Security `restricted`, scratch space, environment, tolerations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo_operator.api.labels import GPU_RESOURCE
from octavo_operator.api.spec import EnvironmentVariable, PoolSpec, Toleration

USER_ID = 65532
"""User and group of the runtime image; the number that distroless images call `nonroot`."""
COMMAND = "octavo"
SCRATCH = "scratch"
CACHE_DIRECTORY = "/cache"

Manifest = dict[str, Any]


def pod_security() -> Manifest:
    """Pod-level security context of Pod Security `restricted`."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(*, read_only_root: bool) -> Manifest:
    """Container-level security context. GPU pods keep a writable root: device hooks write into it."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only_root,
    }


def scratch_volume() -> Manifest:
    """Writable space for compiled kernels, hub client and temporary files."""
    return {"name": SCRATCH, "emptyDir": {}}


def scratch_mounts() -> list[Manifest]:
    """The scratch volume where programs expect to write."""
    return [
        {"name": SCRATCH, "mountPath": CACHE_DIRECTORY, "subPath": "cache"},
        {"name": SCRATCH, "mountPath": "/tmp", "subPath": "tmp"},  # noqa: S108 (a path inside the container)
    ]


def environment(extra: Iterable[EnvironmentVariable], *more: Manifest) -> list[Manifest]:
    """Cache locations, then `more`, then the user's variables, which win by name."""
    variables: dict[str, Manifest] = {
        name: {"name": name, "value": value}
        for name, value in (
            ("HOME", CACHE_DIRECTORY),
            ("HF_HOME", f"{CACHE_DIRECTORY}/huggingface"),
            ("TRITON_CACHE_DIR", f"{CACHE_DIRECTORY}/triton"),
        )
    }
    variables.update({item["name"]: item for item in more})
    variables.update({item.name: {"name": item.name, "value": item.value} for item in extra})
    return list(variables.values())


def toleration(item: Toleration) -> Manifest:
    """As Kubernetes spells it."""
    return item.model_dump(by_alias=True, exclude_none=True)


def tolerations(pool: PoolSpec, *, gpu: bool) -> list[Manifest]:
    """The pool's tolerations, and the taint that keeps other pods off GPU nodes."""
    result = [toleration(item) for item in pool.tolerations]
    if gpu:
        result.append({"key": GPU_RESOURCE, "operator": "Exists"})
    return result
