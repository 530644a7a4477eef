"""From `kubectl apply` to an answer, and that it stays right when things are killed."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

import pytest

from e2e.chat import chat, service_url
from e2e.installation import OPERATOR_NAMESPACE, Installation
from e2e.kube import Object, condition, conditions_text, eventually
from e2e.manifests import NAME, tiny_moe

pytestmark = pytest.mark.cluster

READY_SECONDS = 150
QUESTION = "What does the json module do?"

KILL_CHILDREN_OF_INIT = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{pid}/stat") as stat:
        parent = int(stat.read().rsplit(")", 1)[1].split()[1])
    if parent == 1:
        os.kill(int(pid), signal.SIGKILL)
"""
"""The server is process 1 of its container and cannot be killed from inside; its engine can."""


def wait_ready(installed: Installation, namespace: str, *, replicas: int = 1) -> Object:
    """The ModelDeployment once it is Ready in its present generation with so many ready pods."""

    def ready() -> Object | None:
        found = installed.kube.get("mdep", NAME, namespace)
        state = condition(found, "Ready")
        assert found is not None
        status = found.get("status", {})
        assert state.get("status") == "True", conditions_text(found)
        assert state.get("observedGeneration") == found["metadata"]["generation"]
        assert status.get("readyReplicas") == replicas, f"{status.get('readyReplicas')} ready replicas"
        return found

    return eventually(f"{NAME} Ready", ready, READY_SECONDS)


def serving_pods(installed: Installation, namespace: str) -> list[Object]:
    """Pods of the model that are not on their way out."""
    selector = f"serving.octavo.dev/model={NAME},serving.octavo.dev/state=serving"
    pods = installed.kube.items("pods", namespace, selector)
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def identity(pods: list[Object]) -> set[tuple[str, int]]:
    """What changes when a pod is replaced or a container restarts."""
    return {(p["metadata"]["uid"], s["restartCount"]) for p in pods for s in p["status"].get("containerStatuses", [])}


def ask(installed: Installation, namespace: str) -> str:
    """An answer through the Service."""
    with service_url(installed.kube, NAME, namespace, direct=installed.routed) as url:
        answer = chat(url, NAME, QUESTION)
    text: str = answer["choices"][0]["message"]["content"]
    return text


def metrics(installed: Installation, namespace: str) -> list[str]:
    """What the replica behind the Service exports."""
    direct = installed.routed
    with (
        service_url(installed.kube, NAME, namespace, direct=direct) as url,
        urllib.request.urlopen(f"{url}/metrics", timeout=10) as response,
    ):
        return str(response.read().decode()).splitlines()


@pytest.fixture
def served(installed: Installation, fresh_namespace: Callable[[], str]) -> str:
    """A namespace in which the tiny MoE is Ready."""
    namespace = fresh_namespace()
    installed.kube.apply(tiny_moe(installed.model_source), namespace)
    wait_ready(installed, namespace)
    return namespace


def test_an_applied_model_answers_through_its_service_and_says_why(installed: Installation, served: str) -> None:
    found = installed.kube.get("mdep", NAME, served)
    assert found is not None
    pool = found["status"]["plan"]["pools"][0]
    text = json.dumps(pool)
    assert "INT4" in text
    assert "FP8" in text
    assert "CPU" in text, "the reason names the hardware it was chosen for"
    wide = installed.kube.run("get", "mdep", NAME, "-n", served, "-o", "wide")
    assert "INT4, KV FP8" in wide
    kernels = [line for line in metrics(installed, served) if line.startswith("octavo_kernel_info")]
    assert kernels
    assert not [line for line in kernels if 'implementation="cpu' not in line], "everything runs in compiled kernels"
    answer = ask(installed, served)
    assert len(answer.split()) >= 3, answer


def test_a_killed_serving_pod_comes_back_ready_by_itself(installed: Installation, served: str) -> None:
    before = {pod["metadata"]["uid"] for pod in serving_pods(installed, served)}
    name = serving_pods(installed, served)[0]["metadata"]["name"]
    installed.kube.run("delete", "pod", name, "-n", served, "--grace-period=0", "--force")

    def replaced() -> bool:
        pods = serving_pods(installed, served)
        ready = [p for p in pods if condition(p, "Ready").get("status") == "True"]
        return len(ready) == 1 and ready[0]["metadata"]["uid"] not in before

    eventually("a new pod is Ready", replaced, READY_SECONDS)
    wait_ready(installed, served)
    assert ask(installed, served)


def test_a_killed_engine_process_ends_its_container_which_is_restarted(installed: Installation, served: str) -> None:
    pod = serving_pods(installed, served)[0]
    installed.kube.run("exec", "-n", served, pod["metadata"]["name"], "--", "python3", "-c", KILL_CHILDREN_OF_INIT)

    def restarted() -> bool:
        statuses = serving_pods(installed, served)[0]["status"]["containerStatuses"]
        return bool(statuses[0]["restartCount"] >= 1 and statuses[0]["ready"])

    eventually("the container is Ready again after a restart", restarted, READY_SECONDS)
    wait_ready(installed, served)
    assert ask(installed, served)


def test_two_replicas_both_answer_after_an_edit(installed: Installation, served: str) -> None:
    installed.kube.patch("mdep", NAME, served, {"spec": {"replicas": 2}})
    wait_ready(installed, served, replicas=2)

    def both_answered() -> bool:
        ask(installed, served)
        totals = [installed.finished_requests(pod, served) for pod in serving_pods(installed, served)]
        return len(totals) == 2 and all(total > 0 for total in totals)

    eventually("both pods have finished a request", both_answered, 60)
    scaled = installed.kube.run(
        "get", "mdep", NAME, "-n", served, "-o", "jsonpath={.status.replicas}/{.status.selector}"
    )
    assert scaled.startswith("2/")
    installed.kube.run("scale", "mdep", NAME, "-n", served, "--replicas=1")
    wait_ready(installed, served, replicas=1)


def test_a_new_operator_or_default_runtime_image_restarts_no_serving_pod(installed: Installation, served: str) -> None:
    before = identity(serving_pods(installed, served))
    old_operator = installed.operator_pod()["metadata"]["uid"]
    installed.upgrade(operator_image=installed.other_operator_image, runtime_image=installed.other_runtime_image)
    try:

        def outdated() -> bool:
            assert installed.operator_pod()["metadata"]["uid"] != old_operator
            return "PlanOutdated" in conditions_text(installed.kube.get("mdep", NAME, served))

        eventually("the new operator says that the plan is outdated", outdated, READY_SECONDS)
        assert identity(serving_pods(installed, served)) == before
        assert ask(installed, served)
    finally:
        installed.upgrade()
    assert identity(serving_pods(installed, served)) == before


def test_an_operator_killed_at_any_moment_ends_in_the_same_state(
    installed: Installation, fresh_namespace: Callable[[], str]
) -> None:
    namespaces = []
    for _ in range(3):
        namespace = fresh_namespace()
        installed.kube.apply(tiny_moe(installed.model_source), namespace)
        installed.kill_operator()
        namespaces.append(namespace)
    shapes = []
    for namespace in namespaces:
        found = wait_ready(installed, namespace)
        shapes.append(installed.shape(namespace, found))
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize("operator_present", [True, False], ids=["operator running", "operator gone"])
def test_nothing_is_left_after_delete(installed: Installation, served: str, operator_present: bool) -> None:
    if not operator_present:
        installed.scale_operator(0)
    try:
        installed.kube.delete("mdep", NAME, served)

        def gone() -> bool:
            left = [
                f"{kind}/{item['metadata']['name']}"
                for kind in ("mdep", "deployments", "replicasets", "pods", "services", "serviceaccounts")
                for item in installed.kube.items(kind, served)
                if item["metadata"]["name"] != "default"
            ]
            assert not left, left
            return True

        eventually("everything of it is gone", gone, 90)
    finally:
        if not operator_present:
            installed.scale_operator(1)
    assert installed.kube.get("namespace", OPERATOR_NAMESPACE, "default") is not None
