"""Caches of the objects that the operator looks at, filled by LISTs, watches and the answers to its own writes.

An object is replaced only by a newer one (resourceVersions of one resource are ordered numbers since Kubernetes 1.35,
and were before in practice), so an event that was under way during a write does not take the write back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator.api import labels
from octavo_operator.cluster.kinds import Kind

JsonObject = dict[str, Any]


@dataclass(frozen=True, order=True)
class Key:
    """Namespace and name of an object; of a ModelDeployment where nothing else is said."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(body: Mapping[str, Any]) -> Key:
    """Where an object is."""
    metadata = body["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


def model_of(body: Mapping[str, Any]) -> Key | None:
    """The ModelDeployment that a child says it belongs to."""
    metadata = body["metadata"]
    name = (metadata.get("labels") or {}).get(labels.MODEL)
    return Key(metadata.get("namespace", ""), name) if name else None


def version_of(body: Mapping[str, Any]) -> int:
    """resourceVersion as a number; 0 when it is none."""
    text = str(body.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


class Store:
    """All caches, with children indexed by their model."""

    def __init__(self) -> None:
        self._objects: defaultdict[Kind, dict[Key, JsonObject]] = defaultdict(dict)
        self._by_model: defaultdict[tuple[Kind, Key], set[Key]] = defaultdict(set)

    def get(self, kind: Kind, key: Key) -> JsonObject | None:
        """The cached object."""
        return self._objects[kind].get(key)

    def all(self, kind: Kind) -> list[JsonObject]:
        """Every cached object of the kind."""
        return list(self._objects[kind].values())

    def count(self, kind: Kind) -> int:
        """How many objects of the kind are cached."""
        return len(self._objects[kind])

    def of_model(self, kind: Kind, model: Key) -> list[JsonObject]:
        """Children of a kind that carry the model's label, by name."""
        objects = self._objects[kind]
        return [objects[key] for key in sorted(self._by_model.get((kind, model), ())) if key in objects]

    def put(self, kind: Kind, body: Mapping[str, Any]) -> bool:
        """Keep `body` if it is news; whether it was."""
        key = key_of(body)
        present = self._objects[kind].get(key)
        if present is not None and _same_object(present, body) and version_of(body) <= version_of(present):
            return False
        self._forget_model(kind, key)
        self._objects[kind][key] = _slim(body)
        model = model_of(body)
        if model is not None:
            self._by_model[kind, model].add(key)
        return True

    def remove(self, kind: Kind, body: Mapping[str, Any]) -> bool:
        """Drop the object; one of the same name that was made later stays. Whether something was dropped."""
        key = key_of(body)
        present = self._objects[kind].get(key)
        if present is None or not _same_object(present, body):
            return False
        self._forget_model(kind, key)
        del self._objects[kind][key]
        return True

    def replace(self, kind: Kind, bodies: Iterable[Mapping[str, Any]], namespace: str | None, version: int) -> set[Key]:
        """Take over a complete LIST: what it has, and that the rest of that namespace (None: all) is gone.

        An object newer than the list (`version`) was made while it was read and stays. Returns the keys that changed.
        """
        listed = {key_of(body): body for body in bodies}
        changed = {key for key, body in listed.items() if self.put(kind, body)}
        for key, present in list(self._objects[kind].items()):
            in_scope = namespace is None or key.namespace == namespace
            if in_scope and key not in listed and version_of(present) <= version:
                self.remove(kind, present)
                changed.add(key)
        return changed

    def _forget_model(self, kind: Kind, key: Key) -> None:
        present = self._objects[kind].get(key)
        model = None if present is None else model_of(present)
        if model is not None:
            self._by_model[kind, model].discard(key)
            if not self._by_model[kind, model]:
                del self._by_model[kind, model]


def _same_object(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["metadata"].get("uid") == other["metadata"].get("uid"))


def _slim(body: Mapping[str, Any]) -> JsonObject:
    """Without managedFields, which are half of many objects and are never read."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return {**body, "metadata": metadata}
