"""A pool that is renamed: the old one's pods answer until they are not needed."""

from __future__ import annotations

from octavo_operator.api import labels
from octavo_operator.api.status import ConditionType as C
from octavo_operator.cluster.kinds import DEPLOYMENTS
from tests.operator.harness import INLINE, Cluster, served

OTHER_POOL = [{"name": "other", "accelerator": "None"}]


def deployments(cluster: Cluster) -> list[str]:
    return [item["metadata"]["name"] for item in cluster.api.of(DEPLOYMENTS)]


async def test_a_renamed_pool_takes_its_old_deployment_along_once_the_new_one_answers() -> None:
    cluster = await served()
    cluster.submit(model=INLINE, pools=OTHER_POOL)
    await cluster.settle()
    assert deployments(cluster) == ["tiny-cpu", "tiny-other"], "the old pool serves until the new one does"
    cluster.roll_out(ready=False)
    await cluster.settle()
    assert deployments(cluster) == ["tiny-cpu", "tiny-other"]
    cluster.roll_out()
    await cluster.settle()
    assert deployments(cluster) == ["tiny-other"]
    cluster.roll_out()
    await cluster.settle()
    assert cluster.condition(C.READY)["status"] == "True"


async def test_an_old_pool_makes_room_when_the_new_one_finds_no_node() -> None:
    cluster = await served()
    cluster.submit(model=INLINE, pools=OTHER_POOL)
    await cluster.settle()
    cluster.roll_out(ready=False)
    (new,) = [pod for pod in cluster.serving_pods() if pod["metadata"]["labels"][labels.POOL] == "other"]
    full = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient nvidia.com/gpu"}
    cluster.set_pod_status(new, {"phase": "Pending", "conditions": [full]})
    await cluster.settle()
    assert deployments(cluster) == ["tiny-other"]


async def test_an_old_pool_goes_at_once_when_no_replica_is_wanted() -> None:
    cluster = await served()
    cluster.submit(model=INLINE, pools=OTHER_POOL, replicas=0)
    await cluster.settle()
    assert deployments(cluster) == ["tiny-other"]
