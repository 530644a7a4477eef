"""The few facts of a Node that matter here, cut out of the API object so that caches stay small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_operator.api.labels import GPU_RESOURCE
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.api.spec import PoolSpec, Toleration

TRANSIENT_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints under these prefixes come and go (cordon, not-ready, pressure); they do not change what hardware there is."""
BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True)
class Taint:
    """A node taint."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{'=' + self.value if self.value else ''}:{self.effect}"


@dataclass(frozen=True)
class Node:
    """Name, labels, taints and allocatable resources of one node."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, str]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Node:
        """Cut from a `v1` Node object."""
        metadata = body.get("metadata", {})
        taints = body.get("spec", {}).get("taints") or ()
        return cls(
            name=metadata.get("name", ""),
            labels=dict(metadata.get("labels") or {}),
            taints=tuple(Taint(t["key"], t.get("value", ""), t.get("effect", "")) for t in taints),
            allocatable=dict(body.get("status", {}).get("allocatable") or {}),
        )

    def amount(self, resource: str) -> int:
        """Whole units of an allocatable resource; 0 when the node has none or says something odd."""
        try:
            return int(parse_quantity(self.allocatable.get(resource, "0")))
        except ValueError:
            return 0

    def label_mismatch(self, selector: Mapping[str, str]) -> tuple[str, ...]:
        """What of `selector` this node does not have, in words."""
        return tuple(
            f"{key} is {self.labels[key]!r}, not {wanted!r}" if key in self.labels else f"no label {key}"
            for key, wanted in selector.items()
            if self.labels.get(key) != wanted
        )

    def repelling_taint(self, pool: PoolSpec, resource_name: str | None) -> Taint | None:
        """The first lasting taint that keeps this pool's pods away; the GPU taint is tolerated by every GPU pod."""
        for taint in self.taints:
            if taint.effect not in BLOCKING_EFFECTS or taint.key.startswith(TRANSIENT_TAINTS):
                continue
            if resource_name is not None and taint.key in {GPU_RESOURCE, resource_name}:
                continue
            if not tolerated(taint, pool.tolerations):
                return taint
        return None


def tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """Kubernetes' rule: empty key with Exists matches all, empty effect matches every effect."""
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return not toleration.key or toleration.key == taint.key
    return toleration.key == taint.key and (toleration.value or "") == taint.value
