"""What the API server answers to the operator's writes reaches status."""

from __future__ import annotations

import pytest

from octavo_operator.api import labels
from octavo_operator.api.status import ConditionType as C
from octavo_operator.cluster.errors import ApiError, Throttled, Unreachable, error_of
from octavo_operator.cluster.kinds import DEPLOYMENTS, PODS
from tests.operator.fake_api import Write
from tests.operator.harness import INLINE, KEY, NAMESPACE, Cluster
from tests.operator.samples import SOURCE

WEBHOOK = "failed calling webhook policy.example: connection refused"


@pytest.mark.parametrize(("model", "kind"), [(INLINE, "deployments"), ({"source": SOURCE}, "pods")])
async def test_a_webhook_that_is_down_is_said_and_tried_again(model: dict[str, object], kind: str) -> None:
    cluster = Cluster()

    def fail(write: Write) -> None:
        if write.kind == kind:
            raise error_of(500, "InternalError", WEBHOOK)

    cluster.api.before_write = fail
    cluster.submit(model=model)
    due = await cluster.settle()
    assert due is not None
    assert cluster.condition(C.READY)["reason"] == "ApplyFailed"
    assert WEBHOOK in cluster.condition(C.READY)["message"]
    cluster.api.before_write = lambda _write: None
    await cluster.settle()
    assert cluster.condition(C.READY)["status"] == "Unknown", "it goes on when the webhook is back"


@pytest.mark.parametrize("error", [Throttled(429, "TooManyRequests", "", 1.0), Unreachable(0, "Timeout", "")])
async def test_a_server_that_is_busy_or_away_is_left_to_the_queue(error: ApiError) -> None:
    cluster = Cluster()

    def fail(_write: Write) -> None:
        raise error

    cluster.api.before_write = fail
    cluster.submit(model=INLINE)
    with pytest.raises(type(error)):
        await cluster.reconciler.reconcile(KEY)


async def test_a_strangers_pod_in_the_inspect_pods_place_is_named() -> None:
    planned = Cluster()
    planned.submit()
    await planned.settle()
    name = planned.inspect_pods()[0]["metadata"]["name"]
    cluster = Cluster()
    theirs = {"metadata": {"name": name, "namespace": NAMESPACE, "labels": {labels.COMPONENT: "theirs"}}, "spec": {}}
    cluster.api.put(PODS, theirs)
    cluster.store.remove(PODS, cluster.api.of(PODS)[0])
    cluster.submit()
    due = await cluster.reconciler.reconcile(KEY)
    assert due is not None, "it is looked at again: nobody tells us when the pod goes"
    for kind in (C.READY, C.MODEL_INSPECTED):
        assert cluster.condition(kind)["reason"] == "NameConflict"
        assert name in cluster.condition(kind)["message"]
    cluster.remove(cluster.api.of(PODS)[0])
    await cluster.settle()
    assert cluster.condition(C.READY)["reason"] == "Inspecting"


async def test_our_own_pod_that_the_cache_does_not_know_yet_is_taken_over() -> None:
    cluster = Cluster()
    cluster.submit()
    await cluster.settle()
    cluster.finish_inspection()
    for pod in cluster.inspect_pods():
        cluster.store.remove(PODS, pod)
    await cluster.settle()
    assert cluster.condition(C.MODEL_INSPECTED)["status"] == "True"
    assert cluster.api.of(DEPLOYMENTS)
