"""Refusals that the user mends outside the spec: a licence accepted, a repository or a file put there."""

from __future__ import annotations

import pytest

from octavo_operator.api import labels
from octavo_operator.api.status import ConditionType as C
from octavo_runtime.contract.termination import Refusal
from tests.operator.harness import Cluster

ROUND_SECONDS = 300
MENDABLE = (
    "SourceForbidden",
    "SourceNotFound",
    "ConfigMissing",
    "ShardMissing",
    "CheckpointCorrupt",
    "CheckpointUnreadable",
)


async def refused(reason: str) -> tuple[Cluster, float | None]:
    """A cluster whose first inspection was refused, and when it is due again."""
    cluster = Cluster()
    cluster.submit()
    await cluster.settle()
    cluster.finish_inspection(Refusal(reason=reason, message="the file is not there"))
    return cluster, await cluster.settle()


@pytest.mark.parametrize("reason", MENDABLE)
async def test_what_is_mended_outside_the_spec_is_found_at_the_next_look(reason: str) -> None:
    cluster, due = await refused(reason)
    assert due == ROUND_SECONDS
    message = cluster.condition(C.MODEL_INSPECTED)["message"]
    assert "every 5 minutes" in message
    assert labels.REPLAN in message
    cluster.advance(ROUND_SECONDS)
    await cluster.settle()
    assert cluster.inspect_pods()[-1]["metadata"]["name"].endswith("-2")
    cluster.finish_inspection()
    await cluster.settle()
    assert cluster.condition(C.MODEL_INSPECTED)["status"] == "True"


async def test_looking_again_in_vain_writes_no_status_and_keeps_few_pods() -> None:
    cluster, _ = await refused("SourceForbidden")
    cluster.api.writes.clear()
    for _ in range(3):
        cluster.advance(ROUND_SECONDS)
        await cluster.settle()
        cluster.finish_inspection(Refusal(reason="SourceForbidden", message="the file is not there"))
        assert await cluster.settle() == ROUND_SECONDS
    assert [write.verb for write in cluster.api.writes if write.verb not in {"create", "delete"}] == []
    assert len(cluster.inspect_pods()) == 1


async def test_the_replan_annotation_looks_again_at_once() -> None:
    cluster, _ = await refused("ShardMissing")
    before = cluster.inspect_pods()
    cluster.submit(annotations={labels.REPLAN: "1"})
    await cluster.settle()
    (pod,) = cluster.inspect_pods()
    assert pod["metadata"]["name"] != before[0]["metadata"]["name"]
