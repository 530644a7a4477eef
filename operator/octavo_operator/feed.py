"""From watch events to caches to keys in the work queue. Events carry no meaning beyond: look at this again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_operator.cluster.kinds import MODEL_DEPLOYMENTS, NODES, Kind
from octavo_operator.cluster.queue import WorkQueue
from octavo_operator.cluster.store import Key, Store, key_of, model_of
from octavo_operator.cluster.telemetry import OBJECTS
from octavo_operator.hardware.node import Node

DELETED = "DELETED"
RELEVANT_METADATA = ("generation", "annotations", "labels", "deletionTimestamp", "uid")
"""Metadata of a ModelDeployment whose change asks for a reconcile; its status is our own word."""


class Feed:
    """Keeps the caches and says whose turn it is."""

    def __init__(self, store: Store, queue: WorkQueue[Key]) -> None:
        self._store = store
        self._queue = queue
        self._nodes: dict[str, Node] | None = None

    def nodes(self) -> tuple[Node, ...] | None:
        """All nodes, or None where they may not be read."""
        return None if self._nodes is None else tuple(self._nodes.values())

    def observe(self, kind: Kind, event_type: str | None, body: Mapping[str, Any]) -> None:
        """One watch event."""
        if kind == NODES:
            self._observe_node(event_type, body)
        elif kind == MODEL_DEPLOYMENTS:
            self._observe_model(event_type, body)
        else:
            news = self._store.remove(kind, body) if event_type == DELETED else self._store.put(kind, body)
            model = model_of(body)
            if news and model is not None:
                self._queue.add(model)
        OBJECTS.labels(resource=kind.plural).set(len(self._nodes or ()) if kind == NODES else self._store.count(kind))

    def replace(self, kind: Kind, bodies: Sequence[Mapping[str, Any]], namespace: str | None, version: int) -> None:
        """A complete LIST: what a broken watch may have missed is put right."""
        if kind == NODES:
            nodes = {node.name: node for node in map(Node.of, bodies)}
            if nodes != self._nodes:
                self._nodes = nodes
                self._wake_all()
            return
        gone = [model_of(item) for item in self._store.all(kind)] if kind != MODEL_DEPLOYMENTS else []
        changed = self._store.replace(kind, bodies, namespace, version)
        if not changed:
            return
        if kind == MODEL_DEPLOYMENTS:
            self._wake(changed)
        else:
            self._wake({model for model in (*gone, *map(model_of, bodies)) if model is not None})

    def _observe_node(self, event_type: str | None, body: Mapping[str, Any]) -> None:
        node = Node.of(body)
        nodes = dict(self._nodes or {})
        if event_type == DELETED:
            nodes.pop(node.name, None)
        else:
            nodes[node.name] = node
        if nodes != self._nodes:
            self._nodes = nodes
            self._wake_all()

    def _observe_model(self, event_type: str | None, body: Mapping[str, Any]) -> None:
        key = key_of(body)
        before = self._store.get(MODEL_DEPLOYMENTS, key)
        if event_type == DELETED:
            self._store.remove(MODEL_DEPLOYMENTS, body)
        elif self._store.put(MODEL_DEPLOYMENTS, body) and (before is None or _relevant(before) != _relevant(body)):
            self._queue.add(key)

    def _wake_all(self) -> None:
        self._wake({key_of(item) for item in self._store.all(MODEL_DEPLOYMENTS)})

    def _wake(self, keys: set[Key]) -> None:
        for key in sorted(keys):
            self._queue.add(key)


def _relevant(body: Mapping[str, Any]) -> list[Any]:
    return [body["metadata"].get(field) for field in RELEVANT_METADATA]
