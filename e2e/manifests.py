"""ModelDeployments that the scenarios apply."""

from __future__ import annotations

from typing import Any

NAME = "tiny-moe"


def tiny_moe(source: str, *, name: str = NAME, **spec: Any) -> dict[str, Any]:
    """A CPU ModelDeployment of `source`; keyword arguments replace whole spec fields."""
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": source},
            "context": {"maxModelLen": 2048, "maxConcurrentRequests": 8},
            "pools": [{"name": "cpu", "accelerator": "None"}],
            "rollout": {"drainSeconds": 5},
            "replicas": 1,
            **spec,
        },
    }
