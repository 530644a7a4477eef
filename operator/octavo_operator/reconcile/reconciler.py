"""The loop's body: look, decide, act, say. Level-based and idempotent: it never asks what happened, only what is."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from datetime import datetime

from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.api.status import ModelDeploymentStatus, PlanStatus
from octavo_operator.cluster.client import Api
from octavo_operator.cluster.errors import Conflict, NotFound
from octavo_operator.cluster.events import Recorder
from octavo_operator.cluster.kinds import DEPLOYMENTS, MODEL_DEPLOYMENTS, PODS
from octavo_operator.cluster.store import Key, Store
from octavo_operator.hardware.node import Node
from octavo_operator.inspection.pods import Trouble
from octavo_operator.reconcile.announce import announcements
from octavo_operator.reconcile.carry_out import Blocked, Hands
from octavo_operator.reconcile.decision import Decision, decide
from octavo_operator.reconcile.settings import Settings
from octavo_operator.reconcile.world import JsonObject, World
from octavo_operator.resources.children import deployment_name, service_url
from octavo_operator.status.conditions import conditions
from octavo_operator.status.document import build_status, previous_status, to_document
from octavo_operator.status.findings import no
from octavo_operator.status.workload import Workload

BLOCKED_RETRY_SECONDS = 15.0
"""How soon a blocked write is tried again; nothing watches a stranger's object or an admission rule."""

logger = logging.getLogger(__name__)


class Reconciler:
    """Brings one ModelDeployment at a time into being. Clock, client, caches and recorder come from outside."""

    def __init__(
        self,
        api: Api,
        store: Store,
        recorder: Recorder,
        settings: Settings,
        now: Callable[[], datetime],
        nodes: Callable[[], tuple[Node, ...] | None],
    ) -> None:
        self._api = api
        self._store = store
        self._recorder = recorder
        self._settings = settings
        self._now = now
        self._nodes = nodes
        self._hands = Hands(api, store)

    async def reconcile(self, key: Key) -> float | None:
        """Bring `key` up to date. Returns in how many seconds it is due again, None when only a change makes it due."""
        model = self._store.get(MODEL_DEPLOYMENTS, key)
        if model is None or "deletionTimestamp" in model["metadata"]:
            return None  # children go with their owner
        world = self._observe(key, model)
        decision = decide(world, self._settings)
        blocked: Trouble | None = None
        due = decision.requeue_seconds
        try:
            await self._hands.carry_out(decision, world.owner)
        except Blocked as stop:
            blocked = stop.trouble
            due = BLOCKED_RETRY_SECONDS if stop.retry else due
        await self._say(self._observe(key, model), decision, blocked)
        return due

    def _observe(self, key: Key, model: JsonObject) -> World:
        return World(
            model=model,
            deployments=tuple(self._store.of_model(DEPLOYMENTS, key)),
            pods=tuple(self._store.of_model(PODS, key)),
            nodes=self._nodes(),
            now=self._now(),
        )

    async def _say(self, world: World, decision: Decision, blocked: Trouble | None) -> None:
        """Write the status if it is news, then the events that the change is worth."""
        before = previous_status(world.model)
        after = conclude(world, decision, blocked, before)
        document = to_document(after)
        if document == world.model.get("status"):
            return
        body = {**world.model, "status": document}
        try:
            self._store.put(MODEL_DEPLOYMENTS, await self._api.replace_status(MODEL_DEPLOYMENTS, body))
        except NotFound:
            return  # deleted meanwhile
        except Conflict:
            metadata = world.model["metadata"]
            fresh = await self._api.get(MODEL_DEPLOYMENTS, metadata["namespace"], metadata["name"])
            if fresh is not None:
                self._store.put(MODEL_DEPLOYMENTS, fresh)
            raise
        for announcement in announcements(before, after):
            await self._recorder.publish(world.model, announcement)


def conclude(
    world: World, decision: Decision, blocked: Trouble | None, before: ModelDeploymentStatus
) -> ModelDeploymentStatus:
    """The status that follows from a decision and the world after it was carried out. Pure."""
    decided = decision.decided
    if blocked is not None:
        inspecting = decision.inspect_pod is not None
        model = no(blocked.reason, blocked.message) if inspecting else decided.model
        decided = dataclasses.replace(decided, blocked=blocked, model=model)
    spec = decision.spec
    workload = None if spec is None else _workload(world, decision, spec)
    wanted = int(world.raw_spec.get("replicas", 1)) if spec is None else spec.replicas
    plan = None
    if decision.frozen is not None:
        pools = () if decision.frozen.pool is None else (decision.frozen.pool,)
        plan = PlanStatus(image=decision.frozen.image, pools=pools, outdated=decision.outdated)
    return build_status(
        before,
        conditions(decided, workload, wanted),
        name=world.owner.name,
        generation=world.generation,
        wanted=wanted,
        now=world.now,
        workload=workload,
        model=decision.model,
        plan=plan,
        url=service_url(world.owner) if decision.frozen is not None else None,
    )


def _workload(world: World, decision: Decision, spec: ModelDeploymentSpec) -> Workload | None:
    """What runs of the frozen plan; None while nothing is to run."""
    frozen, source = decision.frozen, decision.source
    if frozen is None or source is None:
        return None
    name = deployment_name(world.owner.name, spec.pool.name)
    deployment = next((item for item in world.owned_deployments() if item["metadata"]["name"] == name), None)
    return Workload(
        deployment=deployment,
        pods=world.serving_pods(),
        plan_label=frozen.plan_label,
        source=source,
        memory=None if frozen.pool is None else frozen.pool.memory,
    )
