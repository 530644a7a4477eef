"""Whose a child object is: metadata that every manifest of ours carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator.api import labels

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Owner:
    """The ModelDeployment that children belong to."""

    name: str
    namespace: str
    uid: str

    def reference(self) -> Manifest:
        """Controller reference. Without `blockOwnerDeletion`, which needs a permission of its own on some clusters."""
        return {
            "apiVersion": labels.API_VERSION,
            "kind": labels.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }

    def metadata(self, name: str, component: str, annotations: Mapping[str, str] | None = None) -> Manifest:
        """Metadata of a child."""
        metadata: Manifest = {
            "name": name,
            "namespace": self.namespace,
            "labels": labels.common(self.name, component),
            "ownerReferences": [self.reference()],
        }
        if annotations:
            metadata["annotations"] = dict(annotations)
        return metadata

    def controls(self, body: Mapping[str, Any]) -> bool:
        """Whether an existing object is controlled by this very ModelDeployment (by uid, not by name)."""
        references = body.get("metadata", {}).get("ownerReferences") or ()
        return any(ref.get("controller") and ref.get("uid") == self.uid for ref in references)


def controller_of(body: Mapping[str, Any]) -> str:
    """Who controls an object, for a message."""
    references = body.get("metadata", {}).get("ownerReferences") or ()
    for reference in references:
        if reference.get("controller"):
            return f"{reference.get('kind')} {reference.get('name')}"
    return "nobody"
