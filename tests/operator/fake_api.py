"""A small API server in memory, for unit tests of the control loop.

What it does: uid, resourceVersion, generation (when spec changes), 404, 409 for a taken name or a stale status write,
deletion by uid, and a list of every write. What it does not: defaults, validation, CEL, field ownership (an apply
replaces spec and metadata as a whole), admission, garbage collection, watches, controllers, kubelets. Tests that need
any of these run against the real one (e2e).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator.cluster.errors import ApiError, Conflict
from octavo_operator.cluster.kinds import Kind

JsonObject = dict[str, Any]
SERVER_METADATA = ("uid", "resourceVersion", "generation", "deletionTimestamp")


@dataclass(frozen=True)
class Write:
    """One call that changed something, or tried to."""

    verb: str
    kind: str
    name: str


class FakeApi:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], JsonObject] = {}
        self.writes: list[Write] = []
        self.before_write: Callable[[Write], None] = lambda _write: None
        """Raise here to be killed before a write."""
        self.after_write: Callable[[Write], None] = lambda _write: None
        """Raise here to be killed after a write."""
        self.changed: Callable[[Kind, JsonObject], None] = lambda _kind, _body: None
        """A watch: called with every new state."""
        self._numbers = itertools.count(1)

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """A copy of the object."""
        return copy.deepcopy(self.objects.get((kind.plural, namespace, name)))

    async def apply(self, kind: Kind, manifest: Mapping[str, Any]) -> JsonObject:
        """Create, or replace everything but status."""
        metadata = manifest["metadata"]
        where = (kind.plural, metadata["namespace"], metadata["name"])
        with _Written(self, Write("apply", kind.plural, metadata["name"])):
            present = self.objects.get(where)
            body = copy.deepcopy(dict(manifest))
            if present is None:
                return self._store(kind, {**body, "metadata": {**body["metadata"], **self._identity()}})
            kept = {key: present["metadata"][key] for key in SERVER_METADATA if key in present["metadata"]}
            body["metadata"].update(kept)
            if "status" in present:
                body["status"] = present["status"]
            if body == present:
                return copy.deepcopy(present)
            return self._store(kind, body, bump=body.get("spec") != present.get("spec"))

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> JsonObject:
        """Create, or Conflict."""
        metadata = manifest["metadata"]
        with _Written(self, Write("create", kind.plural, metadata["name"])):
            if (kind.plural, metadata["namespace"], metadata["name"]) in self.objects:
                raise Conflict(409, "AlreadyExists", metadata["name"])
            body = copy.deepcopy(dict(manifest))
            return self._store(kind, {**body, "metadata": {**body["metadata"], **self._identity()}})

    async def replace_status(self, kind: Kind, body: Mapping[str, Any]) -> JsonObject:
        """Replace the status of the very version that was read."""
        metadata = body["metadata"]
        with _Written(self, Write("status", kind.plural, metadata["name"])):
            present = self.objects[kind.plural, metadata["namespace"], metadata["name"]]
            if present["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
                raise Conflict(409, "Conflict", "the object has been modified")
            return self._store(kind, {**present, "status": copy.deepcopy(body["status"])})

    async def delete(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Delete this very object; gone already is fine."""
        metadata = body["metadata"]
        with _Written(self, Write("delete", kind.plural, metadata["name"])):
            where = (kind.plural, metadata["namespace"], metadata["name"])
            present = self.objects.get(where)
            if present is not None and present["metadata"]["uid"] == metadata["uid"]:
                del self.objects[where]

    # What the rest of the world does.

    def put(self, kind: Kind, body: Mapping[str, Any]) -> JsonObject:
        """Somebody else creates or changes an object."""
        metadata = body["metadata"]
        present = self.objects.get((kind.plural, metadata["namespace"], metadata["name"]))
        if present is None:
            return self._store(kind, {**body, "metadata": {**self._identity(), **metadata}})
        kept = {key: present["metadata"][key] for key in SERVER_METADATA if key in present["metadata"]}
        return self._store(
            kind,
            {**copy.deepcopy(dict(body)), "metadata": {**metadata, **kept}},
            bump=body.get("spec") != present.get("spec"),
        )

    def of(self, kind: Kind) -> list[JsonObject]:
        """All objects of a kind, by name."""
        return [body for (plural, _, _), body in sorted(self.objects.items()) if plural == kind.plural]

    def _identity(self) -> JsonObject:
        return {"uid": f"uid-{next(self._numbers)}", "generation": 1}

    def _store(self, kind: Kind, body: JsonObject, *, bump: bool = False) -> JsonObject:
        metadata = {**body["metadata"], "resourceVersion": str(next(self._numbers))}
        if bump:
            metadata["generation"] += 1
        stored = {**copy.deepcopy(body), "metadata": metadata}
        self.objects[kind.plural, metadata["namespace"], metadata["name"]] = stored
        self.changed(kind, copy.deepcopy(stored))
        return copy.deepcopy(stored)


class _Written:
    """Notes a write and lets tests cut the caller off before or after it."""

    def __init__(self, api: FakeApi, write: Write) -> None:
        self._api = api
        self._write = write

    def __enter__(self) -> None:
        self._api.before_write(self._write)
        self._api.writes.append(self._write)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, ApiError):
            self._api.after_write(self._write)
