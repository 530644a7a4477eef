"""What a decision looks at: one ModelDeployment and everything that is there for it, at one moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from octavo_operator.api import labels
from octavo_operator.hardware.node import Node
from octavo_operator.resources.ownership import Owner

JsonObject = Mapping[str, Any]


@dataclass(frozen=True)
class World:
    """Objects as they are in the caches."""

    model: JsonObject
    """The ModelDeployment itself."""
    deployments: tuple[JsonObject, ...]
    """Deployments that carry the model's label."""
    pods: tuple[JsonObject, ...]
    """Serving and inspect pods that carry the model's label."""
    nodes: tuple[Node, ...] | None
    """All nodes; None where they may not be read."""
    now: datetime

    @property
    def owner(self) -> Owner:
        """Whose children these are."""
        metadata = self.model["metadata"]
        return Owner(metadata["name"], metadata["namespace"], metadata["uid"])

    @property
    def generation(self) -> int:
        """Generation of the spec that is looked at."""
        return int(self.model["metadata"].get("generation", 0))

    @property
    def raw_spec(self) -> dict[str, Any]:
        """The spec as the user wrote it."""
        return dict(self.model.get("spec") or {})

    @property
    def replan_token(self) -> str:
        """Value of the replan annotation; empty when there is none."""
        return str((self.model["metadata"].get("annotations") or {}).get(labels.REPLAN, ""))

    def owned_deployments(self) -> tuple[JsonObject, ...]:
        """Deployments whose controller is this very object and which are not on their way out."""
        return tuple(
            item
            for item in self.deployments
            if self.owner.controls(item) and "deletionTimestamp" not in item["metadata"]
        )

    def inspect_pods(self) -> tuple[JsonObject, ...]:
        """Our inspect pods that are not on their way out."""
        return tuple(
            pod
            for pod in self._pods(labels.COMPONENT_INSPECT)
            if self.owner.controls(pod) and "deletionTimestamp" not in pod["metadata"]
        )

    def serving_pods(self) -> tuple[JsonObject, ...]:
        """Pods that take traffic or are about to."""
        return tuple(
            pod
            for pod in self._pods(labels.COMPONENT_SERVER)
            if pod["metadata"]["labels"].get(labels.STATE) == labels.STATE_SERVING
        )

    def with_deployment(self, deployment: JsonObject) -> World:
        """The same world after a Deployment was applied."""
        name = deployment["metadata"]["name"]
        others = tuple(item for item in self.deployments if item["metadata"]["name"] != name)
        return dataclasses.replace(self, deployments=(*others, deployment))

    def _pods(self, component: str) -> tuple[JsonObject, ...]:
        return tuple(pod for pod in self.pods if pod["metadata"]["labels"].get(labels.COMPONENT) == component)
