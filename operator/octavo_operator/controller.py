"""The control loop around reconcile: prime the caches, run workers, list again now and then.

kopf watches (main.py); everything it sees comes in through `Feed`. Its streams can miss a deletion when they start
over, so a full LIST every resync period puts the caches right.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator.cluster.client import KubeClient
from octavo_operator.cluster.errors import ApiError, Conflict, NotFound, Throttled
from octavo_operator.cluster.kinds import CHILDREN, MODEL_DEPLOYMENTS, NODES, Kind
from octavo_operator.cluster.queue import WorkQueue, work
from octavo_operator.cluster.store import Key, Store
from octavo_operator.cluster.telemetry import QUEUE_DEPTH, RECONCILE_SECONDS, RECONCILES
from octavo_operator.feed import Feed
from octavo_operator.probes import Health
from octavo_operator.reconcile import Reconciler

FIRST_RELIST_SECONDS = 60.0
"""Objects that went between priming and the first watch are found out this soon."""
HEARTBEAT_SECONDS = 5.0
RESYNC_JITTER = 0.1
START_BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0)
THROTTLED_SECONDS = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scope:
    """Where the operator looks."""

    namespaces: tuple[str | None, ...]
    """Namespaces to list and watch; (None,) for all of them."""
    nodes_readable: bool

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds to list and watch."""
        return (MODEL_DEPLOYMENTS, *CHILDREN, *((NODES,) if self.nodes_readable else ()))


async def wait_for_api(client: KubeClient, health: Health) -> None:
    """Return once the API server answers and serves our kind; says on each try what is missing."""
    attempt = 0
    while True:
        health.beat()
        try:
            if await client.served(MODEL_DEPLOYMENTS):
                return
            problem = "the CustomResourceDefinition of ModelDeployment is not installed"
        except ApiError as error:
            problem = str(error)
        delay = START_BACKOFF_SECONDS[min(attempt, len(START_BACKOFF_SECONDS) - 1)]
        logger.warning("waiting for the API server", extra={"problem": problem, "retry_seconds": delay})
        attempt += 1
        await asyncio.sleep(delay)


async def find_scope(client: KubeClient, namespaces: Sequence[str] | None) -> Scope:
    """What our credential may see. Nodes are optional: spec.pools[].hardware and CPU pools do without."""
    readable = all([await client.allowed(verb, NODES) for verb in ("list", "watch")])
    logger.info(
        "scope found", extra={"namespaces": ",".join(namespaces) if namespaces else "all", "nodes_readable": readable}
    )
    return Scope(tuple(namespaces) if namespaces else (None,), readable)


class KindNotServed(Exception):
    """The CRD was removed while we ran; kopf's watch of it ends for good, so the process starts over and waits."""


class Controller:
    """Primes, works, lists again."""

    def __init__(
        self,
        client: KubeClient,
        store: Store,
        feed: Feed,
        queue: WorkQueue[Key],
        reconciler: Reconciler,
        health: Health,
        scope: Scope,
        resync_seconds: float,
    ) -> None:
        self._client = client
        self._store = store
        self._feed = feed
        self._queue = queue
        self._reconciler = reconciler
        self._health = health
        self._scope = scope
        self._resync_seconds = resync_seconds

    async def prime(self) -> None:
        """Fill the caches from complete LISTs, children first: a model is looked at with its children known."""
        for kind in reversed(self._scope.kinds):
            for namespace in self._scope.namespaces if kind.namespaced else (None,):
                items, version = await self._client.list_all(kind, namespace)
                self._feed.replace(kind, items, namespace, int(version) if version.isdecimal() else 0)

    async def run(self, workers: int) -> None:
        """Work until cancelled; the caches are primed. Raises KindNotServed."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(workers):
                    group.create_task(work(self._queue, self._handle), name=f"worker-{number}")
                group.create_task(self._relist(), name="relist")
                group.create_task(self._heartbeat(), name="heartbeat")
        except* KindNotServed as gone:
            raise gone.exceptions[0] from None

    async def _handle(self, key: Key) -> None:
        """Reconcile one key and make its next appointment; a failure of one key is no failure of the loop."""
        try:
            with RECONCILE_SECONDS.time():
                due = await self._reconciler.reconcile(key)
        except Throttled as error:
            self._queue.add_after(key, error.retry_after_seconds or THROTTLED_SECONDS)
            RECONCILES.labels(result="failed").inc()
        except Conflict:
            self._queue.add_rate_limited(key)
            RECONCILES.labels(result="requeued").inc()
        except ApiError as error:
            delay = self._queue.add_rate_limited(key)
            logger.warning(
                "reconcile failed", extra={"model": str(key), "error": str(error), "retry_seconds": round(delay, 2)}
            )
            RECONCILES.labels(result="failed").inc()
        except Exception:
            self._queue.add_rate_limited(key)
            logger.exception("reconcile failed: this is a defect", extra={"model": str(key)})
            RECONCILES.labels(result="failed").inc()
        else:
            self._queue.forget(key)
            if self._store.get(MODEL_DEPLOYMENTS, key) is not None:
                self._queue.add_after(key, self._jittered() if due is None else due)
            RECONCILES.labels(result="settled" if due is None else "requeued").inc()

    async def _relist(self) -> None:
        delay = min(FIRST_RELIST_SECONDS, self._resync_seconds)
        while True:
            await asyncio.sleep(delay)
            delay = self._jittered()
            try:
                await self.prime()
            except NotFound as error:
                raise KindNotServed(error.message) from error
            except ApiError as error:
                logger.warning("resync failed", extra={"error": str(error), "retry_seconds": round(delay)})

    async def _heartbeat(self) -> None:
        while True:
            self._health.beat()
            QUEUE_DEPTH.set(len(self._queue))
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _jittered(self) -> float:
        return self._resync_seconds * (1 + RESYNC_JITTER * random.uniform(-1, 1))  # noqa: S311 (no secret)
