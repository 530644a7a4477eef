"""Act on a decision: dull, in an order that leaves a good state behind wherever it is cut off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api import labels
from octavo_operator.cluster.client import Api
from octavo_operator.cluster.errors import ApiError, Conflict, Rejected, Throttled, Unreachable
from octavo_operator.cluster.kinds import DEPLOYMENTS, PODS, SERVICE_ACCOUNTS, SERVICES, Kind
from octavo_operator.cluster.store import Key, Store
from octavo_operator.inspection.pods import Trouble, cut
from octavo_operator.reconcile.decision import Decision
from octavo_operator.resources.matching import is_applied
from octavo_operator.resources.ownership import Manifest, Owner, controller_of


class Blocked(Exception):
    """A child could not be written; `trouble` goes into status."""

    def __init__(self, trouble: Trouble, *, retry: bool) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble
        self.retry = retry
        """Whether to try again soon: nothing tells us when the cause is gone."""


class Hands:
    """Writes children. Every answer goes into the caches, so the next reconcile sees its own writes."""

    def __init__(self, api: Api, store: Store) -> None:
        self._api = api
        self._store = store

    async def carry_out(self, decision: Decision, owner: Owner) -> None:
        """Make the world as decided; raises Blocked with the reason when a child cannot be written.

        The inspect pod's identity comes before it, the Service before the pods it will find; what is obsolete goes
        last, when its successor is there. Where the server is away or busy, or an object changed meanwhile, the
        caller's own retry is all it takes: these errors pass.
        """
        try:
            await self._write(decision, owner)
        except (Conflict, Throttled, Unreachable):
            raise
        except ApiError as error:
            message = f"the API server failed to write a child: {error}"
            raise Blocked(Trouble("ApplyFailed", cut(message)), retry=True) from error

    async def _write(self, decision: Decision, owner: Owner) -> None:
        if decision.service_account is not None:
            await self._ensure(SERVICE_ACCOUNTS, decision.service_account, owner)
        if decision.inspect_pod is not None:
            await self._create_pod(decision.inspect_pod, owner)
        if decision.service is not None:
            await self._ensure(SERVICES, decision.service, owner)
        if decision.deployment is not None:
            await self._ensure(DEPLOYMENTS, decision.deployment, owner)
        for kind, bodies in ((PODS, decision.obsolete_pods), (DEPLOYMENTS, decision.obsolete_deployments)):
            for body in bodies:
                await self._api.delete(kind, body)
                self._store.remove(kind, body)

    async def _ensure(self, kind: Kind, manifest: Manifest, owner: Owner) -> None:
        """Apply unless it is applied already; never write to an object that somebody else controls."""
        metadata = manifest["metadata"]
        live: Mapping[str, Any] | None = self._store.get(kind, Key(metadata["namespace"], metadata["name"]))
        if live is None:
            # The caches hold only what carries our label; a stranger's object of this name does not.
            live = await self._api.get(kind, metadata["namespace"], metadata["name"])
        if live is not None:
            if not owner.controls(live):
                raise Blocked(_not_ours(kind, live, owner), retry=True)
            if "deletionTimestamp" in live["metadata"]:
                message = f"{kind.name} {metadata['name']} is being deleted; it is made again when it is gone"
                raise Blocked(Trouble("BeingDeleted", message), retry=True)
            if is_applied(manifest, live):
                return
        try:
            self._store.put(kind, await self._api.apply(kind, manifest))
        except Rejected as error:
            message = f"the API server refuses {kind.name} {metadata['name']}: {error.message}"
            raise Blocked(Trouble("ApplyRejected", message), retry=True) from error

    async def _create_pod(self, manifest: Manifest, owner: Owner) -> None:
        try:
            self._store.put(PODS, await self._api.create(PODS, manifest))
        except Conflict:
            if not await self._take_over(manifest, owner):
                raise  # gone meanwhile: the caller looks again
        except Rejected as error:
            message = f"the API server refuses the inspect pod: {error.message}"
            raise Blocked(Trouble("InspectPodRejected", message), retry=True) from error

    async def _take_over(self, manifest: Manifest, owner: Owner) -> bool:
        """Whether the name is taken by a pod of ours, which the cache lacked; raises Blocked for a stranger's."""
        live = await self._api.get(PODS, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        if live is None:
            return False
        if not owner.controls(live):
            raise Blocked(_not_ours(PODS, live, owner), retry=True)
        self._store.put(PODS, live)
        return True


def _not_ours(kind: Kind, live: Mapping[str, Any], owner: Owner) -> Trouble:
    """A stranger's object, or one of a ModelDeployment of the same name that was deleted a moment ago."""
    name, controller = live["metadata"]["name"], controller_of(live)
    if controller == f"{labels.KIND} {owner.name}":
        message = f"{kind.name} {name} belongs to an earlier ModelDeployment of this name and is being collected"
        return Trouble("BeingDeleted", message)
    return Trouble(
        "NameConflict",
        f"{kind.name} {name} exists and is controlled by {controller}, so it is left alone: "
        f"delete or rename it, or give the ModelDeployment another name",
    )
