"""A plan that another version of the operator froze: it is obeyed or left alone, and no pod restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.api import labels
from octavo_operator.api.status import ConditionType as C
from octavo_operator.cluster.kinds import DEPLOYMENTS
from tests.operator.harness import INLINE, Cluster, served

OTHER_IMAGE = "registry.example/octavo/runtime:2"


def _under_memory(plan: dict[str, Any]) -> None:
    plan["pool"]["memory"]["allReduceBuffers"] = 1


def _newer_format(plan: dict[str, Any]) -> None:
    plan["format"] = 2
    plan["facts"]["attention"]["slidingWindow"] = 128


def _without_what_this_version_requires(plan: dict[str, Any]) -> None:
    del plan["pool"]["kvTokens"]
    del plan["facts"]["checkpointBytes"]
    del plan["inspection"]


def _rewrite(cluster: Cluster, text: str) -> None:
    """The Deployment's frozen plan as another version, or a slip of the hand, left it."""
    deployment = cluster.deployment
    annotations = {**deployment["metadata"]["annotations"], labels.FROZEN_PLAN: text}
    cluster.api.put(DEPLOYMENTS, {**deployment, "metadata": {**deployment["metadata"], "annotations": annotations}})


def _frozen(cluster: Cluster) -> str:
    return str(cluster.deployment["metadata"]["annotations"][labels.FROZEN_PLAN])


@pytest.mark.parametrize("change", [_under_memory, _newer_format, _without_what_this_version_requires])
async def test_a_plan_of_another_version_is_deployed_as_it_is(change: Callable[[dict[str, Any]], None]) -> None:
    cluster = await served()
    plan = json.loads(_frozen(cluster))
    change(plan)
    text = json.dumps(plan)
    _rewrite(cluster, text)
    before = cluster.deployment["spec"]
    cluster.start_operator(image=OTHER_IMAGE)
    await cluster.settle()
    assert cluster.deployment["spec"] == before
    assert _frozen(cluster) == text, "what the other version needs is still there when it comes back"
    assert cluster.condition(C.PLANNED)["reason"] == "PlanOutdated"
    assert cluster.condition(C.READY)["status"] == "True"
    cluster.submit(model=INLINE, replicas=2)
    await cluster.settle()
    assert cluster.deployment["spec"] == {**before, "replicas": 2}


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 3, "replan": ""}'])
async def test_a_plan_that_cannot_be_read_leaves_the_deployment_alone_and_names_the_way_out(text: str) -> None:
    cluster = await served()
    _rewrite(cluster, text)
    before = cluster.deployment
    cluster.start_operator(image=OTHER_IMAGE)
    await cluster.settle()
    assert cluster.deployment == before
    for kind in (C.PLANNED, C.READY):
        assert cluster.condition(kind)["reason"] == "PlanUnreadable"
        assert labels.REPLAN in cluster.condition(kind)["message"]
    cluster.submit(model=INLINE, context={"maxModelLen": 512})
    await cluster.settle()
    assert cluster.deployment == before, "an edit of the spec is no request to give up what cannot be read"
    cluster.submit(model=INLINE, annotations={labels.REPLAN: "1"})
    await cluster.settle()
    image = cluster.deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == OTHER_IMAGE
    assert cluster.condition(C.PLANNED)["reason"] == "Planned"


async def test_a_replan_that_an_unreadable_plan_has_answered_is_not_obeyed_again() -> None:
    cluster = await served()
    cluster.submit(model=INLINE, annotations={labels.REPLAN: "1"})
    await cluster.settle()
    _rewrite(cluster, '{"format": 3, "replan": "1"}')
    before = cluster.deployment
    cluster.start_operator(image=OTHER_IMAGE)
    await cluster.settle()
    assert cluster.deployment == before


@pytest.mark.parametrize("change", [{"context": {"maxModelLen": 4096}}, {"model": {"source": "pvc://models/other"}}])
@pytest.mark.parametrize("replicas", [0, 3])
async def test_replicas_are_obeyed_while_the_rest_of_the_spec_has_no_plan(
    change: dict[str, Any], replicas: int
) -> None:
    cluster = await served()
    before = cluster.deployment["spec"]
    cluster.submit(**{"model": INLINE, **change, "replicas": replicas})
    await cluster.settle()
    assert cluster.deployment["spec"] == {**before, "replicas": replicas}
    assert cluster.condition(C.PLANNED)["status"] != "True"


async def test_an_old_pool_is_left_alone_while_the_new_one_has_no_plan() -> None:
    cluster = await served()
    before = cluster.deployment
    pools = [{"name": "other", "accelerator": "None"}]
    cluster.submit(model=INLINE, pools=pools, context={"maxModelLen": 4096}, replicas=3)
    await cluster.settle()
    assert cluster.deployment == before
