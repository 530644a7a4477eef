"""The resource kinds that the operator reads or writes."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_operator.api import labels


@dataclass(frozen=True)
class Kind:
    """A resource of the API server."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    name: str
    namespaced: bool = True
    label_selector: str = ""
    """Which objects are listed and watched; empty for all."""

    @property
    def api_version(self) -> str:
        """As in manifests, e.g. `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, the object or its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


MODEL_DEPLOYMENTS = Kind(labels.GROUP, labels.VERSION, labels.PLURAL, labels.KIND)
DEPLOYMENTS = Kind("apps", "v1", "deployments", "Deployment", label_selector=labels.MODEL)
PODS = Kind("", "v1", "pods", "Pod", label_selector=labels.MODEL)
SERVICES = Kind("", "v1", "services", "Service", label_selector=labels.MODEL)
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount", label_selector=labels.MODEL)
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
EVENTS = Kind("events.k8s.io", "v1", "events", "Event")

CHILDREN = (DEPLOYMENTS, PODS, SERVICES, SERVICE_ACCOUNTS)
"""Kinds of owned objects; each carries the model's label."""
