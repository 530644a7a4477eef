"""The loop around reconcile: appointments, failures, complete lists."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from octavo_operator.api import labels
from octavo_operator.cluster.client import KubeClient
from octavo_operator.cluster.errors import ApiError, NotFound, Throttled, Unreachable
from octavo_operator.cluster.kinds import MODEL_DEPLOYMENTS, PODS, Kind
from octavo_operator.cluster.queue import WorkQueue
from octavo_operator.cluster.store import Key, Store
from octavo_operator.controller import Controller, KindNotServed, Scope, find_scope, wait_for_api
from octavo_operator.feed import Feed
from octavo_operator.probes import Health
from octavo_operator.reconcile import Reconciler
from tests.operator.test_queue import ManualClock

RESYNC_SECONDS = 600.0


def model(name: str) -> dict[str, Any]:
    """A ModelDeployment."""
    return {"metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "5"}}


class Lists:
    """A client that only lists."""

    def __init__(self, *models: str) -> None:
        self.objects: dict[Kind, list[dict[str, Any]]] = {MODEL_DEPLOYMENTS: [model(name) for name in models]}
        self.failure: ApiError | None = None
        self.readable = True
        self.answers: list[bool | ApiError] = [True]

    async def list_all(self, kind: Kind, namespace: str | None) -> tuple[list[dict[str, Any]], str]:
        if self.failure is not None:
            raise self.failure
        return self.objects.get(kind, []), "9"

    async def allowed(self, verb: str, kind: Kind, namespace: str | None = None) -> bool:
        return self.readable

    async def served(self, kind: Kind) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


class Reconciles:
    """A reconciler that does as it is told, by name."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.outcomes: dict[str, Exception | float | None] = {}

    async def reconcile(self, key: Key) -> float | None:
        self.seen.append(key.name)
        outcome = self.outcomes.get(key.name)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Loop:
    """A controller with its queue, clock and stand-ins."""

    def __init__(self, *models: str, resync_seconds: float = RESYNC_SECONDS) -> None:
        self.clock = ManualClock()
        self.queue: WorkQueue[Key] = WorkQueue(self.clock, jitter=lambda: 0.0)
        self.store = Store()
        self.client = Lists(*models)
        self.reconciles = Reconciles()
        self.controller = Controller(
            client=cast("KubeClient", self.client),
            store=self.store,
            feed=Feed(self.store, self.queue),
            queue=self.queue,
            reconciler=cast("Reconciler", self.reconciles),
            health=Health(),
            scope=Scope((None,), nodes_readable=False),
            resync_seconds=resync_seconds,
        )

    async def until(self, done: Callable[[], bool]) -> None:
        """Run until `done`, within a bound."""
        running = asyncio.create_task(self.controller.run(workers=2))
        async with asyncio.timeout(10):
            while not done():  # noqa: ASYNC110 (gives the workers their turn; time is injected)
                await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_primed_models_are_looked_at_and_again_after_the_resync_period() -> None:
    loop = Loop("a", "b")
    await loop.controller.prime()
    await loop.until(lambda: sorted(loop.reconciles.seen) == ["a", "b"] and loop.queue.idle())
    loop.clock.advance(RESYNC_SECONDS * 1.2)
    await loop.until(lambda: sorted(loop.reconciles.seen) == ["a", "a", "b", "b"])


async def test_a_model_that_is_due_earlier_is_looked_at_then() -> None:
    loop = Loop("a")
    loop.reconciles.outcomes["a"] = 7.0
    await loop.controller.prime()
    await loop.until(lambda: loop.reconciles.seen == ["a"] and loop.queue.idle())
    loop.clock.advance(6.9)
    assert loop.queue.idle()
    loop.clock.advance(0.2)
    assert not loop.queue.idle()


@pytest.mark.parametrize("failure", [RuntimeError("a defect"), Unreachable(0, "Unreachable", "cut")])
async def test_one_models_failure_backs_off_and_keeps_nobody_else_waiting(failure: Exception) -> None:
    loop = Loop("bad", "good")
    loop.reconciles.outcomes["bad"] = failure
    await loop.controller.prime()
    await loop.until(lambda: {"bad", "good"} <= set(loop.reconciles.seen) and loop.queue.idle())
    loop.clock.advance(0.06)
    await loop.until(lambda: loop.reconciles.seen.count("bad") == 2)
    assert loop.reconciles.seen.count("good") == 1


async def test_a_throttled_model_comes_back_when_the_server_said() -> None:
    loop = Loop("a")
    loop.reconciles.outcomes["a"] = Throttled(429, "TooManyRequests", "slow down", 30.0)
    await loop.controller.prime()
    await loop.until(lambda: loop.reconciles.seen == ["a"] and loop.queue.idle())
    loop.clock.advance(29)
    assert loop.queue.idle()
    loop.clock.advance(2)
    assert not loop.queue.idle()


async def test_a_model_that_is_gone_gets_no_further_appointment() -> None:
    loop = Loop()
    loop.queue.add(Key("team", "ghost"))
    await loop.until(lambda: loop.reconciles.seen == ["ghost"] and loop.queue.idle())
    loop.clock.advance(RESYNC_SECONDS * 2)
    assert loop.queue.idle()


async def test_children_are_known_before_their_model_is_looked_at() -> None:
    loop = Loop("a")
    child = {"metadata": {"name": "p", "namespace": "team", "uid": "p", "labels": {labels.MODEL: "a"}}}
    loop.client.objects[PODS] = [child]
    await loop.controller.prime()
    assert len(loop.store.of_model(PODS, Key("team", "a"))) == 1
    assert len(loop.queue) == 1


async def test_a_removed_crd_ends_the_loop_so_that_the_process_starts_over() -> None:
    loop = Loop(resync_seconds=0.01)
    loop.client.failure = NotFound(404, "NotFound", "the server could not find the requested resource")
    with pytest.raises(KindNotServed):
        async with asyncio.timeout(10):
            await loop.controller.run(workers=1)


async def test_the_start_waits_for_the_api_server_and_for_the_crd_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []

    async def no_wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("octavo_operator.controller.asyncio.sleep", no_wait)
    client = Lists()
    client.answers = [Unreachable(0, "Unreachable", "connection refused"), False, True]
    await wait_for_api(cast("KubeClient", client), Health())
    problems = [getattr(record, "problem", "") for record in caplog.records]
    assert "connection refused" in problems[0]
    assert "CustomResourceDefinition" in problems[1]
    assert waited == [1.0, 2.0]


@pytest.mark.parametrize("readable", [True, False])
async def test_nodes_are_watched_only_where_they_may_be_read(readable: bool) -> None:
    client = Lists()
    client.readable = readable
    scope = await find_scope(cast("KubeClient", client), ["team"])
    assert any(kind.plural == "nodes" for kind in scope.kinds) is readable
    assert scope.namespaces == ("team",)
