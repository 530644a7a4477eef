"""What cannot work ends in an API rejection or a condition that names the cause and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from e2e.installation import Installation
from e2e.kube import KubeError, Object, condition, conditions_text, eventually
from e2e.manifests import NAME, tiny_moe

pytestmark = pytest.mark.cluster

REASON_SECONDS = 120


def wait_for_condition(installed: Installation, namespace: str, kind: str, reason: str, name: str = NAME) -> Object:
    """The condition once it is False or Unknown with `reason`."""

    def seen() -> Object | None:
        found = installed.kube.get("mdep", name, namespace)
        state = condition(found, kind)
        assert state.get("reason") == reason, conditions_text(found)
        return state

    return eventually(f"{kind} with reason {reason}", seen, REASON_SECONDS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec": {"model": {"sourc": "hf://a/b"}}}, ["sourc"]),
        ({"spec": {"preciion": {}}}, ["preciion"]),
        ({"metadata": {"name": "Not_A_Label"}}, ["Not_A_Label"]),
        ({"metadata": {"name": "a" * 41}}, ["40"]),
        ({"metadata": {"name": "two.words"}}, ["DNS label"]),
        ({"spec": {"model": {"source": "ftp://elsewhere/model"}}}, ["hf://", "oci://", "pvc://"]),
        ({"spec": {"precision": {"kvCache": "FP4"}}}, ["FP4", "FP8"]),
        ({"spec": {"replicas": -1}}, ["replicas"]),
    ],
)
def test_the_api_server_rejects_and_names_the_field(
    installed: Installation, fresh_namespace: Callable[[], str], change: dict[str, Any], words: list[str]
) -> None:
    manifest = tiny_moe(installed.model_source)
    for part, fields in change.items():
        manifest[part] = {**manifest[part], **fields}
    with pytest.raises(KubeError) as refused:
        installed.kube.apply(manifest, fresh_namespace())
    for word in words:
        assert word in str(refused.value)


def test_a_source_that_does_not_exist_is_named(installed: Installation, fresh_namespace: Callable[[], str]) -> None:
    namespace = fresh_namespace()
    missing = f"oci://{installed.registry}/octavo/no-such-model:v0"
    installed.kube.apply(tiny_moe(missing), namespace)
    state = wait_for_condition(installed, namespace, "ModelInspected", "SourceNotFound")
    assert "no-such-model" in state["message"]


@pytest.mark.parametrize(
    ("defect", "reason", "words"),
    [
        ("dense", "NotMixtureOfExperts", ["LlamaForCausalLM"]),
        ("corrupt", "CheckpointCorrupt", ["model.safetensors"]),
        ("empty", "ConfigMissing", ["config.json"]),
    ],
)
def test_a_checkpoint_that_cannot_be_served_is_named(
    installed: Installation,
    fresh_namespace: Callable[[], str],
    bad_model: Callable[[str], str],
    defect: str,
    reason: str,
    words: list[str],
) -> None:
    namespace = fresh_namespace()
    installed.kube.apply(tiny_moe(bad_model(defect)), namespace)
    state = wait_for_condition(installed, namespace, "ModelInspected", reason)
    for word in words:
        assert word in state["message"]
    pods = installed.kube.items("pods", namespace)
    assert all(s["restartCount"] == 0 for p in pods for s in p["status"].get("containerStatuses", []))


def test_a_pool_without_matching_nodes_is_named(installed: Installation, fresh_namespace: Callable[[], str]) -> None:
    namespace = fresh_namespace()
    pools = [{"name": "far", "accelerator": "None", "nodeSelector": {"example.com/rack": "nowhere"}}]
    installed.kube.apply(tiny_moe(installed.model_source, pools=pools), namespace)
    state = wait_for_condition(installed, namespace, "HardwareRecognized", "NoMatchingNodes")
    assert "example.com/rack" in state["message"]


def test_a_gpu_pool_in_a_cluster_without_gpus_is_named(
    installed: Installation, fresh_namespace: Callable[[], str]
) -> None:
    namespace = fresh_namespace()
    installed.kube.apply(tiny_moe(installed.model_source, pools=[{"name": "gpu"}]), namespace)
    state = wait_for_condition(installed, namespace, "HardwareRecognized", "NoMatchingNodes")
    assert "nvidia.com/gpu" in state["message"]


def test_a_child_name_in_use_by_somebody_else_is_left_alone(
    installed: Installation, fresh_namespace: Callable[[], str]
) -> None:
    namespace = fresh_namespace()
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": {"owner": "somebody-else"}},
        "spec": {"ports": [{"port": 4321}], "selector": {"app": "theirs"}},
    }
    installed.kube.apply(theirs, namespace)
    installed.kube.apply(tiny_moe(installed.model_source), namespace)

    def conflict() -> bool:
        return "NameConflict" in conditions_text(installed.kube.get("mdep", NAME, namespace))

    eventually("a NameConflict is said", conflict, REASON_SECONDS)
    service = installed.kube.get("service", NAME, namespace)
    assert service is not None
    assert service["spec"]["ports"][0]["port"] == 4321
