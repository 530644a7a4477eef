"""The control loop, against a fake API server: what the world looks like after each step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_operator.api import labels
from octavo_operator.api.status import ConditionType as C
from octavo_operator.cluster.kinds import DEPLOYMENTS, PODS, SERVICE_ACCOUNTS, SERVICES
from octavo_runtime.contract.termination import Refusal
from tests.operator.fake_api import Write
from tests.operator.harness import INLINE, KEY, NAME, NAMESPACE, Cluster, served
from tests.operator.samples import DENSE, SOURCE, TINY, gpu_node

DIGEST = "sha256:" + "ab" * 32


REFUSAL = '{"refusal":{"reason":"DeviceMismatch","message":"found 8.0, planned 9.0"}}'


def ended(terminated: dict[str, Any]) -> dict[str, Any]:
    """A container that ended and waits for its restart."""
    return {
        "name": "server",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": terminated},
    }


async def test_a_new_source_is_inspected_planned_and_served() -> None:
    cluster = Cluster()
    cluster.submit()
    await cluster.settle()
    assert cluster.condition(C.MODEL_INSPECTED)["status"] == "Unknown"
    assert cluster.condition(C.READY)["reason"] == "Inspecting"
    assert len(cluster.inspect_pods()) == 1
    assert not cluster.api.of(DEPLOYMENTS), "nothing is deployed before the facts are known"

    cluster.finish_inspection(image_ref=f"registry.example/octavo/tiny-moe@{DIGEST}")
    await cluster.settle()
    assert cluster.inspect_pods() == [], "the facts are remembered, the pod is not needed"
    assert cluster.model["status"]["model"]["revision"] == DIGEST
    volumes = cluster.deployment["spec"]["template"]["spec"]["volumes"]
    references = [v["image"]["reference"] for v in volumes if "image" in v]
    assert references == [f"registry.example/octavo/tiny-moe@{DIGEST}"], "what was inspected is what is served"
    assert cluster.condition(C.READY)["status"] == "Unknown", "the controller has not seen the Deployment"

    cluster.roll_out()
    await cluster.settle()
    assert cluster.condition(C.READY)["status"] == "True"
    assert cluster.model["status"]["replicaSummary"] == "1/1"
    assert cluster.model["status"]["plan"]["pools"][0]["precision"]["summary"] == "INT4, KV FP8"
    assert cluster.model["status"]["url"] == "http://tiny.team.svc"


async def test_a_hub_model_is_served_at_the_commit_that_was_inspected() -> None:
    cluster = Cluster()
    cluster.submit(model={"source": "hf://octavo/tiny-moe"})
    await cluster.settle()
    commit = "0123456789abcdef0123456789abcdef01234567"
    cluster.finish_inspection(TINY.model_copy(update={"revision": commit}))
    await cluster.settle()
    assert cluster.model["status"]["model"]["revision"] == commit
    (fetch,) = cluster.deployment["spec"]["template"]["spec"]["initContainers"]
    assert fetch["args"] == ["fetch", f"hf://octavo/tiny-moe@{commit}", "/models/model"]


async def test_a_claim_is_served_as_it_was_named() -> None:
    cluster = Cluster()
    cluster.submit(model={"source": "pvc://models/tiny"})
    await cluster.settle()
    cluster.finish_inspection()
    await cluster.settle()
    assert cluster.model["status"]["model"] == {
        **cluster.model["status"]["model"],
        "source": "pvc://models/tiny",
        "revision": "sha256:1111",
    }


async def test_inline_facts_need_no_inspect_pod() -> None:
    cluster = await served()
    assert cluster.inspect_pods() == []
    assert not [w for w in cluster.api.writes if w.kind == PODS.plural]
    assert cluster.condition(C.READY)["status"] == "True"


async def test_a_settled_world_sees_no_write_even_after_a_restart_and_a_resync() -> None:
    cluster = await served()
    cluster.api.writes.clear()
    cluster.start_operator()
    cluster.advance(3600)
    for _ in range(3):
        await cluster.reconciler.reconcile(KEY)
    assert cluster.api.writes == []


async def test_a_new_operator_with_another_default_image_restarts_nothing_and_says_so() -> None:
    cluster = await served()
    before = cluster.deployment["spec"]
    cluster.start_operator(image="registry.example/octavo/runtime:2")
    await cluster.settle()
    assert cluster.deployment["spec"] == before
    planned = cluster.condition(C.PLANNED)
    assert (planned["status"], planned["reason"]) == ("True", "PlanOutdated")
    assert "runtime:2" in planned["message"]
    assert cluster.condition(C.READY)["status"] == "True"


async def test_the_replan_annotation_takes_the_new_plan_once() -> None:
    cluster = await served()
    cluster.start_operator(image="registry.example/octavo/runtime:2")
    cluster.submit(model=INLINE, annotations={labels.REPLAN: "1"})
    await cluster.settle()
    image = cluster.deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "registry.example/octavo/runtime:2"
    assert cluster.condition(C.PLANNED)["reason"] == "Planned"
    cluster.start_operator(image="registry.example/octavo/runtime:3")
    await cluster.settle()
    assert cluster.condition(C.PLANNED)["reason"] == "PlanOutdated", "the same annotation is not obeyed twice"


async def test_replicas_change_the_deployment_and_not_the_plan() -> None:
    cluster = await served()
    template = cluster.deployment["spec"]["template"]
    cluster.submit(model=INLINE, replicas=2)
    await cluster.settle()
    assert cluster.deployment["spec"]["replicas"] == 2
    assert cluster.deployment["spec"]["template"] == template
    cluster.roll_out()
    await cluster.settle()
    status = cluster.model["status"]
    assert (status["replicas"], status["readyReplicas"], status["replicaSummary"]) == (2, 2, "2/2")
    assert status["observedGeneration"] == cluster.model["metadata"]["generation"]


async def test_somebody_elses_change_of_what_we_own_is_taken_back() -> None:
    cluster = await served()
    wrong = {**cluster.deployment, "spec": {**cluster.deployment["spec"], "replicas": 7}}
    cluster.api.put(DEPLOYMENTS, wrong)
    await cluster.settle()
    assert cluster.deployment["spec"]["replicas"] == 1


async def test_a_strangers_service_is_left_alone_and_named() -> None:
    cluster = Cluster()
    theirs = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {"selector": {"app": "theirs"}}}
    cluster.api.put(SERVICES, theirs)
    cluster.submit(model=INLINE)
    due = await cluster.settle()
    assert due is not None, "it is looked at again: nobody tells us when the Service goes"
    assert cluster.condition(C.READY)["reason"] == "NameConflict"
    assert "Service tiny" in cluster.condition(C.READY)["message"]
    (service,) = cluster.api.of(SERVICES)
    assert service["spec"]["selector"] == {"app": "theirs"}
    assert not cluster.api.of(DEPLOYMENTS), "pods that nobody can reach are not started"


async def test_a_change_of_the_plan_reaches_new_pods_and_old_ones_do_not_make_it_ready() -> None:
    cluster = await served()
    cluster.submit(model=INLINE, context={"maxModelLen": 512})
    await cluster.settle()
    assert cluster.condition(C.READY)["status"] == "Unknown"
    deployment = cluster.deployment
    seen = {"observedGeneration": deployment["metadata"]["generation"]}
    cluster.api.put(DEPLOYMENTS, {**deployment, "status": seen})
    await cluster.settle()
    ready = cluster.condition(C.READY)
    assert (ready["status"], ready["reason"]) == ("False", "Starting")
    assert "1 pods of the plan before still answer" in ready["message"]
    cluster.roll_out()
    await cluster.settle()
    assert cluster.condition(C.READY)["status"] == "True"


async def test_a_plan_that_cannot_be_made_leaves_what_runs_alone() -> None:
    cluster = await served()
    before = cluster.deployment["spec"]
    cluster.submit(model=INLINE, context={"maxModelLen": 4096})
    await cluster.settle()
    assert cluster.condition(C.PLANNED)["reason"] == "ContextTooLong"
    assert cluster.condition(C.READY)["status"] == "False"
    assert "still answer" in cluster.condition(C.READY)["message"]
    assert cluster.deployment["spec"] == before
    cluster.submit(model=INLINE)
    await cluster.settle()
    assert cluster.condition(C.READY)["status"] == "True", "setting it back recovers without a restart"
    assert cluster.deployment["spec"] == before


async def test_a_pool_without_nodes_is_named_and_planned_when_the_node_comes() -> None:
    cluster = Cluster()
    cluster.submit(model=INLINE, pools=[{"name": "gpu"}])
    await cluster.settle()
    assert cluster.condition(C.HARDWARE_RECOGNIZED)["reason"] == "NoMatchingNodes"
    assert cluster.condition(C.READY)["reason"] == "NoMatchingNodes"
    cluster.nodes = (gpu_node("g1", "9", "0", "143771"),)
    await cluster.settle()
    assert cluster.condition(C.PLANNED)["status"] == "True"
    assert cluster.model["status"]["plan"]["pools"][0]["accelerators"] == "1x9.0"


async def test_an_unknown_generation_serves_on_safe_formats_and_is_said() -> None:
    cluster = Cluster()
    pools = [{"name": "gpu", "hardware": {"computeCapability": "13.0", "memoryMiB": 200_000}}]
    cluster.submit(model=INLINE, pools=pools)
    await cluster.settle()
    cluster.roll_out()
    await cluster.settle()
    assert cluster.condition(C.HARDWARE_RECOGNIZED)["reason"] == "UnknownGeneration"
    assert "13.0" in cluster.condition(C.HARDWARE_RECOGNIZED)["message"]
    assert cluster.condition(C.READY)["status"] == "True"


async def test_labels_that_vanish_move_no_pod() -> None:
    cluster = Cluster()
    cluster.nodes = (gpu_node("g1", "9", "0", "143771"),)
    cluster.submit(model=INLINE, pools=[{"name": "gpu"}])
    await cluster.settle()
    before = cluster.deployment["spec"]
    cluster.nodes = ()
    await cluster.settle()
    assert cluster.deployment["spec"] == before
    assert cluster.condition(C.PLANNED)["reason"] == "PlanOutdated"


async def test_a_refusal_that_will_not_go_away_is_not_tried_again_until_the_spec_changes() -> None:
    cluster = Cluster()
    cluster.submit()
    await cluster.settle()
    cluster.finish_inspection(Refusal(reason="ConfigInvalid", message="config.json in /models/model is no JSON"))
    due = await cluster.settle()
    assert due is None
    cluster.advance(100_000)
    await cluster.settle()
    assert len(cluster.inspect_pods()) == 1
    assert cluster.condition(C.MODEL_INSPECTED)["reason"] == "ConfigInvalid"
    assert "config.json" in cluster.condition(C.READY)["message"]
    assert SOURCE in cluster.condition(C.READY)["message"], "the source that the user wrote, not only a path in a pod"
    cluster.submit(model={"source": "oci://registry.example/octavo/tiny-moe:better"})
    await cluster.settle()
    (pod,) = cluster.inspect_pods()
    assert "better" in json.dumps(pod["spec"])


async def test_a_refusal_that_may_go_away_is_tried_again_at_the_time_that_the_condition_names() -> None:
    cluster = Cluster()
    cluster.submit()
    await cluster.settle()
    cluster.finish_inspection(Refusal(reason="HubUnreachable", message="no answer from the hub", retryable=True))
    due = await cluster.settle()
    assert due == 10
    message = cluster.condition(C.MODEL_INSPECTED)["message"]
    assert "next attempt at 2026-01-02T03:04:15Z" in message
    cluster.advance(10)
    await cluster.settle()
    assert cluster.inspect_pods()[-1]["metadata"]["name"].endswith("-2")
    assert cluster.condition(C.MODEL_INSPECTED)["reason"] == "HubUnreachable", "no flapping while it is tried again"
    cluster.finish_inspection()
    await cluster.settle()
    assert cluster.condition(C.MODEL_INSPECTED)["status"] == "True"
    assert cluster.inspect_pods() == []


async def test_a_dense_model_is_refused_by_name() -> None:
    cluster = Cluster()
    cluster.submit()
    await cluster.settle()
    cluster.finish_inspection(DENSE)
    await cluster.settle()
    condition = cluster.condition(C.MODEL_INSPECTED)
    assert condition["reason"] == "NotMixtureOfExperts"
    assert "LlamaForCausalLM" in condition["message"]
    assert not cluster.api.of(DEPLOYMENTS)
    assert cluster.inspect_pods() == []


async def test_a_missing_model_image_is_named_while_the_kubelet_still_tries() -> None:
    cluster = Cluster()
    cluster.submit()
    await cluster.settle()
    image = SOURCE.removeprefix("oci://")
    waiting = {"reason": "ErrImagePull", "message": f"failed to pull {image}: not found"}
    status = {"phase": "Pending", "containerStatuses": [{"name": "inspect", "state": {"waiting": waiting}}]}
    cluster.set_pod_status(cluster.inspect_pods()[0], status)
    await cluster.settle()
    assert cluster.condition(C.MODEL_INSPECTED)["reason"] == "SourceNotFound"
    assert image in cluster.condition(C.READY)["message"]


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (
            {
                "containerStatuses": [
                    {"name": "server", "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ]
            },
            "OOMKilled",
            "KV cache",
        ),
        (
            {"containerStatuses": [ended({"exitCode": 3, "message": REFUSAL})]},
            "DeviceMismatch",
            "found 8.0, planned 9.0",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "server", "lastState": {"terminated": {"exitCode": 1, "message": "boom"}}}
                ]
            },
            "Crashed",
            "boom",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient nvidia.com/gpu"}
                ]
            },
            "Unschedulable",
            "Insufficient nvidia.com/gpu",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "models" not found.'}
                ]
            },
            "SourceNotFound",
            "models",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "server", "image": "r/x:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
                ]
            },
            "ImagePullFailed",
            "r/x:1",
        ),
    ],
)
async def test_what_a_pod_suffers_from_is_said(status: dict[str, Any], reason: str, words: str) -> None:
    cluster = Cluster()
    cluster.submit(model=INLINE)
    await cluster.settle()
    cluster.roll_out(ready=False)
    cluster.set_pod_status(cluster.serving_pods()[0], {"phase": "Pending", **status})
    await cluster.settle()
    for kind in (C.READY, C.WORKLOAD_AVAILABLE):
        assert cluster.condition(kind)["reason"] == reason
        assert words in cluster.condition(kind)["message"]


async def test_what_quota_or_admission_says_about_pods_is_said() -> None:
    cluster = Cluster()
    cluster.submit(model=INLINE)
    await cluster.settle()
    deployment = cluster.deployment
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: compute"}
    status = {"observedGeneration": deployment["metadata"]["generation"], "conditions": [failure]}
    cluster.api.put(DEPLOYMENTS, {**deployment, "status": status})
    await cluster.settle()
    assert cluster.condition(C.READY)["reason"] == "ReplicaFailure"
    assert "exceeded quota" in cluster.condition(C.READY)["message"]


async def test_zero_replicas_is_a_state_and_no_fault() -> None:
    cluster = await served()
    cluster.submit(model=INLINE, replicas=0)
    await cluster.settle()
    cluster.roll_out()
    await cluster.settle()
    assert cluster.condition(C.READY)["reason"] == "ScaledToZero"
    assert cluster.condition(C.PROGRESSING)["status"] == "False"


async def test_a_spec_of_another_version_is_named_by_its_field() -> None:
    cluster = Cluster()
    cluster.submit(model=INLINE, autoscaling={"mode": "Auto"})
    await cluster.settle()
    condition = cluster.condition(C.MODEL_INSPECTED)
    assert condition["reason"] == "InvalidSpec"
    assert "spec.autoscaling" in condition["message"]


async def test_transition_times_move_only_with_the_status() -> None:
    cluster = await served()
    before = {c["type"]: c["lastTransitionTime"] for c in cluster.model["status"]["conditions"]}
    cluster.advance(100)
    cluster.submit(model=INLINE, rollout={"drainSeconds": 1})
    await cluster.settle()
    after = {c["type"]: c["lastTransitionTime"] for c in cluster.model["status"]["conditions"]}
    assert after["ModelInspected"] == before["ModelInspected"]
    assert after["Ready"] != before["Ready"], "Ready became Unknown for the new generation"


async def test_events_are_written_for_changes_and_a_cause_is_said_once() -> None:
    cluster = Cluster()
    cluster.submit(model=INLINE, pools=[{"name": "gpu"}])
    await cluster.settle()
    warnings = [event.reason for event in cluster.events.said if event.warning]
    assert warnings == ["NoMatchingNodes"]
    cluster.events.said.clear()
    cluster.start_operator()
    await cluster.settle()
    assert cluster.events.said == []


async def test_deletion_is_left_to_the_garbage_collector() -> None:
    cluster = await served()
    model = cluster.model
    model["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    cluster.start_operator()
    cluster.api.writes.clear()
    assert await cluster.reconciler.reconcile(KEY) is None
    assert cluster.api.writes == []
    for kind in (DEPLOYMENTS, SERVICES, SERVICE_ACCOUNTS):
        (child,) = cluster.api.of(kind)
        (reference,) = child["metadata"]["ownerReferences"]
        assert reference["uid"] == model["metadata"]["uid"]
        assert reference["controller"]


class Killed(BaseException):
    """The process is gone, in the middle of it."""


async def play(cluster: Cluster) -> None:
    """Submit, inspect, roll out, change the context, scale."""
    cluster.submit()
    await cluster.settle()
    if cluster.inspect_pods():
        cluster.finish_inspection()
    await cluster.settle()
    cluster.roll_out()
    await cluster.settle()
    cluster.submit(context={"maxModelLen": 512}, replicas=2)
    await cluster.settle()
    cluster.roll_out()
    await cluster.settle()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_at_any_write_and_restarted_the_end_state_is_the_same(moment: str) -> None:
    undisturbed = Cluster()
    await play(undisturbed)
    total = len(undisturbed.api.writes)
    assert total > 8
    for number in range(total):
        cluster = Cluster()
        await _play_with_a_kill(cluster, number, moment)
        assert cluster.shape() == undisturbed.shape(), f"killed {moment} write {number}"


async def _play_with_a_kill(cluster: Cluster, number: int, moment: str) -> None:
    """As `play`, but the operator dies at the n-th write and a fresh one takes over."""
    count = 0

    def kill(_write: Write) -> None:
        nonlocal count
        count += 1
        if count == number + 1:
            raise Killed

    if moment == "before":
        cluster.api.before_write = kill
    else:
        cluster.api.after_write = kill
    settle = cluster.settle

    async def settle_through_a_death() -> float | None:
        try:
            return await settle()
        except Killed:
            cluster.start_operator()
            return await settle()

    cluster.settle = settle_through_a_death  # type: ignore[method-assign]
    await play(cluster)
    assert count > number, "the kill happened"
