"""Builders: what is applied, as YAML that a reader can check. `UPDATE_GOLDEN=1 pytest ...` rewrites the files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.hardware import Hardware
from octavo_operator.api.source import ImageSource, parse_source
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.planning.plan import Plan, PlanRequest
from octavo_operator.planning.planner import plan
from octavo_operator.resources.children import build_service, build_service_account
from octavo_operator.resources.frozen import FrozenPlan, Unreadable, plan_inputs
from octavo_operator.resources.inspect_pod import build_inspect_pod
from octavo_operator.resources.ownership import Manifest, Owner
from octavo_operator.resources.serving_pod import Serving, build_pod_template, grace_seconds, startup_seconds
from octavo_operator.status.plan_report import pool_plan
from octavo_runtime.contract.facts import ModelFacts
from tests.operator.samples import CPU, H100, IMAGE, QWEN_30B, TINY, spec

GOLDEN = Path(__file__).parent / "golden"
OWNER = Owner("tiny", "team", "0c3e-uid")
HUB = {
    "model": {"source": "hf://Qwen/Qwen3-30B-A3B@main", "secretRef": {"name": "hub"}},
    "pools": [
        {
            "name": "hopper",
            "nodeSelector": {"rack": "one"},
            "tolerations": [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
            "runtimeClassName": "nvidia",
        }
    ],
    "engine": {"env": [{"name": "HF_ENDPOINT", "value": "http://hub.example"}], "extraArgs": ["--seed=1"]},
}
CLAIM = {"model": {"source": "pvc://models/qwen3/30b"}}
PULL = {"model": {"source": "oci://registry.example/octavo/tiny-moe:dev", "secretRef": {"name": "pull"}}}


def template(model_spec: ModelDeploymentSpec, facts: ModelFacts = TINY, hardware: Hardware = CPU) -> Manifest:
    """The pod template of a planned model."""
    outcome = plan(PlanRequest(facts, hardware))
    assert isinstance(outcome, Plan)
    return build_pod_template(Serving(OWNER, model_spec, parse_source(model_spec.model.source), IMAGE, facts, outcome))


MANIFESTS: dict[str, Any] = {
    "serving-pod-cpu-image": lambda: template(spec()),
    "serving-pod-cpu-claim": lambda: template(spec(**CLAIM)),
    "serving-pod-gpu-hub": lambda: template(spec(**HUB), QWEN_30B, H100),
    "inspect-pod-image": lambda: build_inspect_pod(OWNER, spec(**PULL), IMAGE, "", 1),
    "inspect-pod-hub": lambda: build_inspect_pod(OWNER, spec(**HUB), IMAGE, "", 3),
    "service": lambda: build_service(OWNER),
    "service-account": lambda: build_service_account(OWNER),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifest_is_the_one_that_was_reviewed(name: str) -> None:
    built = MANIFESTS[name]()
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(yaml.safe_dump(built, sort_keys=False, width=120), encoding="utf-8")
    assert built == yaml.safe_load(path.read_text(encoding="utf-8"))


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize("name", [name for name in MANIFESTS if "pod" in name])
def test_pods_pass_pod_security_restricted(name: str) -> None:
    pod = MANIFESTS[name]()["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for container in containers(pod):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
    allowed = {"emptyDir", "persistentVolumeClaim", "image", "name"}
    assert all(volume.keys() <= allowed for volume in pod["volumes"])


def test_only_cpu_pods_have_a_read_only_root_and_every_pod_can_write_where_it_must() -> None:
    cpu, gpu = template(spec())["spec"], template(spec(**HUB), QWEN_30B, H100)["spec"]
    assert cpu["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert gpu["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is False
    for pod in (cpu, gpu):
        paths = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert {"/cache", "/tmp", "/dev/shm"} <= paths


def test_gpu_pods_stay_in_their_hardware_class_and_say_what_they_expect() -> None:
    pod = template(spec(**HUB), QWEN_30B, H100)["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    wanted = {e["key"]: e["values"] for e in term["matchExpressions"]}
    assert wanted["nvidia.com/gpu.compute.major"] == ["9"]
    assert wanted["nvidia.com/gpu.memory"] == ["81559"]
    args = pod["containers"][0]["args"]
    assert "--expect-compute-capability=9.0" in args
    assert "--expect-memory-mib=81559" in args
    assert args[-1] == "--seed=1"


def test_a_hub_model_is_fetched_before_the_server_starts_and_its_token_stays_out_of_the_server() -> None:
    pod = template(spec(**HUB), QWEN_30B, H100)["spec"]
    (fetch,) = pod["initContainers"]
    assert fetch["args"] == ["fetch", "hf://Qwen/Qwen3-30B-A3B@main", "/models/model"]
    assert any(variable["name"] == "HF_TOKEN" for variable in fetch["env"])
    assert not any(variable["name"] == "HF_TOKEN" for variable in pod["containers"][0]["env"])
    disk = pod["containers"][0]["resources"]["requests"]["ephemeral-storage"]
    assert int(disk.removesuffix("Mi")) * 2**20 > QWEN_30B.checkpoint_bytes


def test_a_user_resource_wins_over_the_planned_one() -> None:
    resources = {"requests": {"cpu": 3}, "limits": {"memory": "9Gi"}}
    container = template(spec(engine={"resources": resources}))["spec"]["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "3"
    assert container["resources"]["limits"]["memory"] == "9Gi"


def test_the_grace_period_is_longer_than_the_drain_and_the_start_longer_for_a_larger_model() -> None:
    assert grace_seconds(120) == 5 + 120 + 15
    assert startup_seconds(QWEN_30B) > startup_seconds(TINY) + 600


def test_the_plan_label_follows_the_template_and_nothing_else() -> None:
    one, same = template(spec()), template(spec(replicas=5))
    other = template(spec(rollout={"drainSeconds": 3}))
    label = "serving.octavo.dev/plan"
    assert one["metadata"]["labels"][label] == same["metadata"]["labels"][label]
    assert one["metadata"]["labels"][label] != other["metadata"]["labels"][label]


def test_an_inspect_pod_of_another_spec_is_another_pod() -> None:
    names = {
        build_inspect_pod(OWNER, model_spec, image, replan, 1)["metadata"]["name"]
        for model_spec in (spec(), spec(**CLAIM), spec(engine={"env": [{"name": "A", "value": "b"}]}))
        for image in (IMAGE, "other")
        for replan in ("", "1")
    }
    assert len(names) == 12
    assert all(len(name) <= 63 for name in names)


def test_a_frozen_plan_survives_its_annotation_and_a_foreign_one_is_no_plan() -> None:
    outcome = plan(PlanRequest(TINY, CPU))
    assert isinstance(outcome, Plan)
    frozen = FrozenPlan(
        inputs="i",
        replan="",
        source="pvc://a",
        revision="r",
        inspection="k",
        image=IMAGE,
        facts=TINY,
        pool=pool_plan("cpu", outcome),
        template=template(spec()),
    )
    text = frozen.to_json()
    assert FrozenPlan.parse(text) == frozen.model_copy(update={"text": text})
    assert isinstance(FrozenPlan.parse(text.replace('"format":1', '"format":2')), FrozenPlan)
    assert FrozenPlan.parse("nonsense") == Unreadable("")
    assert FrozenPlan.parse(None) is None


def test_only_what_the_user_wrote_and_not_replicas_counts_as_an_edit() -> None:
    written = {"model": {"source": "pvc://a"}, "replicas": 1}
    assert plan_inputs(written) == plan_inputs({**written, "replicas": 9})
    assert plan_inputs(written) != plan_inputs({**written, "context": {}})


@pytest.mark.parametrize(
    ("reference", "image_ref", "pinned"),
    [
        ("r:5000/a/b:dev", "r:5000/a/b@sha256:12", "r:5000/a/b@sha256:12"),
        ("r:5000/a/b", "r:5000/a/b@sha256:12", "r:5000/a/b@sha256:12"),
        ("r/a/b@sha256:34", "r/a/b@sha256:12", "r/a/b@sha256:34"),
        ("r/a/b:dev", "sha256:12", "r/a/b:dev"),
    ],
)
def test_an_image_is_pinned_to_the_digest_that_the_kubelet_reports(reference: str, image_ref: str, pinned: str) -> None:
    assert ImageSource(reference).pinned(image_ref).reference == pinned
