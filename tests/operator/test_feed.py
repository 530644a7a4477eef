"""From events to caches to keys: what is news, what is not, and what a broken watch missed."""

from __future__ import annotations

from typing import Any

from octavo_operator.api import labels
from octavo_operator.cluster.kinds import DEPLOYMENTS, MODEL_DEPLOYMENTS, NODES, PODS
from octavo_operator.cluster.queue import WorkQueue
from octavo_operator.cluster.store import Key, Store
from octavo_operator.feed import Feed
from tests.operator.samples import node_body
from tests.operator.test_queue import ManualClock

KEY = Key("team", "tiny")


def body(name: str, version: int, *, uid: str = "", model: str = "", **metadata: Any) -> dict[str, Any]:
    """An object of the namespace `team`."""
    own: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
    }
    if model:
        own["labels"] = {labels.MODEL: model}
    return {"metadata": {**own, **metadata}}


def make() -> tuple[Feed, Store, WorkQueue[Key]]:
    store = Store()
    queue: WorkQueue[Key] = WorkQueue(ManualClock())
    return Feed(store, queue), store, queue


async def drained(queue: WorkQueue[Key]) -> list[Key]:
    """Every key that waits."""
    keys = []
    while len(queue):
        key = await queue.get()
        queue.done(key)
        keys.append(key)
    return keys


async def test_a_new_spec_asks_for_a_look_and_our_own_status_does_not() -> None:
    feed, _, queue = make()
    feed.observe(MODEL_DEPLOYMENTS, "ADDED", body("tiny", 1, generation=1))
    assert await drained(queue) == [KEY]
    feed.observe(MODEL_DEPLOYMENTS, "MODIFIED", body("tiny", 2, generation=1))
    assert await drained(queue) == []
    feed.observe(MODEL_DEPLOYMENTS, "MODIFIED", body("tiny", 3, generation=2))
    assert await drained(queue) == [KEY]
    feed.observe(MODEL_DEPLOYMENTS, "MODIFIED", body("tiny", 4, generation=2, annotations={labels.REPLAN: "1"}))
    assert await drained(queue) == [KEY]


async def test_a_child_asks_for_a_look_at_its_model_once_per_version() -> None:
    feed, _, queue = make()
    feed.observe(PODS, "ADDED", body("p", 5, model="tiny"))
    assert await drained(queue) == [KEY]
    feed.observe(PODS, None, body("p", 5, model="tiny"))
    assert await drained(queue) == []
    feed.observe(PODS, "DELETED", body("p", 6, model="tiny"))
    assert await drained(queue) == [KEY]


def test_an_event_under_way_does_not_take_a_newer_answer_back() -> None:
    feed, store, _ = make()
    store.put(DEPLOYMENTS, {**body("d", 9, model="tiny"), "spec": {"replicas": 2}})
    feed.observe(DEPLOYMENTS, "MODIFIED", {**body("d", 8, model="tiny"), "spec": {"replicas": 1}})
    (cached,) = store.of_model(DEPLOYMENTS, KEY)
    assert cached["spec"]["replicas"] == 2


def test_the_end_of_an_older_object_does_not_remove_its_namesake() -> None:
    feed, store, _ = make()
    feed.observe(PODS, "ADDED", body("p", 9, uid="new", model="tiny"))
    feed.observe(PODS, "DELETED", body("p", 8, uid="old", model="tiny"))
    assert store.count(PODS) == 1


async def test_a_list_finds_what_a_broken_watch_missed() -> None:
    feed, store, queue = make()
    feed.observe(PODS, "ADDED", body("gone", 3, model="tiny"))
    feed.observe(PODS, "ADDED", body("stays", 4, model="tiny"))
    await drained(queue)
    feed.replace(PODS, [body("stays", 4, model="tiny")], "team", 10)
    assert [pod["metadata"]["name"] for pod in store.of_model(PODS, KEY)] == ["stays"]
    assert await drained(queue) == [KEY]


async def test_a_list_that_says_nothing_new_wakes_nobody() -> None:
    feed, _, queue = make()
    feed.observe(PODS, "ADDED", body("p", 3, model="tiny"))
    await drained(queue)
    feed.replace(PODS, [body("p", 3, model="tiny")], "team", 10)
    assert await drained(queue) == []


def test_an_object_made_while_the_list_was_read_stays() -> None:
    feed, store, _ = make()
    feed.observe(PODS, "ADDED", body("young", 12, model="tiny"))
    feed.replace(PODS, [], "team", 10)
    assert store.count(PODS) == 1


def test_a_list_of_one_namespace_says_nothing_about_another() -> None:
    feed, store, _ = make()
    feed.observe(PODS, "ADDED", body("p", 3, model="tiny"))
    feed.replace(PODS, [], "elsewhere", 10)
    assert store.count(PODS) == 1


async def test_nodes_wake_all_models_when_hardware_changes_and_not_on_a_heartbeat() -> None:
    feed, _, queue = make()
    feed.observe(MODEL_DEPLOYMENTS, "ADDED", body("tiny", 1, generation=1))
    await drained(queue)
    assert feed.nodes() is None
    feed.observe(NODES, "ADDED", node_body("n1"))
    assert await drained(queue) == [KEY]
    heartbeat = node_body("n1")
    heartbeat["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "later"}]
    feed.observe(NODES, "MODIFIED", heartbeat)
    assert await drained(queue) == []
    feed.observe(NODES, "DELETED", heartbeat)
    assert await drained(queue) == [KEY]
    assert feed.nodes() == ()


def test_managed_fields_are_not_kept() -> None:
    feed, store, _ = make()
    feed.observe(PODS, "ADDED", body("p", 3, model="tiny", managedFields=[{"manager": "x"}]))
    (pod,) = store.of_model(PODS, KEY)
    assert "managedFields" not in pod["metadata"]
