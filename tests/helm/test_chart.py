"""The chart renders what the operator needs, and refuses values that it does not know."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from e2e.cluster import config as configuration
from e2e.cluster.helm import fetch_helm
from e2e.cluster.locks import exclusive
from e2e.cluster.programs import helm_folder
from octavo_operator.api import labels
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.cli.permissions import OPTIONAL, REQUIRED
from octavo_operator.main import parse_options

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "helm" / "octavo"


@pytest.fixture(scope="session")
def helm() -> Path:
    cache_dir = configuration.from_environment(os.environ).cache_dir
    folder = helm_folder(cache_dir)
    with exclusive(cache_dir / "locks" / "helm.lock", 300):
        if not folder.exists():
            fetch_helm(folder)
    return folder / "helm"


def run_helm(helm: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm, *words], capture_output=True, text=True, timeout=60, check=False)


def render(helm: Path, *flags: str) -> list[dict[str, Any]]:
    done = run_helm(helm, "template", "octavo", str(CHART), "--namespace=octavo-system", *flags)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] == kind]


def operator_container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    container: dict[str, Any] = of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]
    return container


def grants(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(permissions: Any) -> set[tuple[str, str, str]]:
    return {(kind.group, kind.plural, verb) for kind, verbs in permissions for verb in verbs}


def test_the_chart_passes_lint(helm: Path) -> None:
    done = run_helm(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_its_crd_is_the_generated_one() -> None:
    name = "serving.octavo.dev_modeldeployments.yaml"
    assert (CHART / "files" / "crds" / name).read_text() == (ROOT / "crds" / name).read_text(), "run `make crds`"


def test_the_rendered_crd_says_what_the_generated_one_does(helm: Path) -> None:
    """Templates pass through Go, which likes to turn large integers into floating-point numbers."""
    rendered = of_kind(render(helm, "--set=crds.keep=false"), "CustomResourceDefinition")
    assert rendered == [yaml.safe_load((ROOT / "crds" / "serving.octavo.dev_modeldeployments.yaml").read_text())]


def test_the_operator_accepts_the_arguments_that_it_is_given(helm: Path) -> None:
    container = operator_container(render(helm, "--set=watch.namespaces={a,b}"))
    options = parse_options(container["args"])
    assert options.namespaces == ("a", "b")
    assert options.runtime_image.endswith("/runtime:0.1.0")


def test_the_roles_grant_what_the_operator_needs_and_no_more(helm: Path) -> None:
    objects = render(helm)
    roles = {role["metadata"]["name"]: role["rules"] for role in of_kind(objects, "ClusterRole")}
    assert grants(roles["octavo-operator"]) == needed(REQUIRED)
    assert grants(roles["octavo-operator-nodes"]) == needed(OPTIONAL)


def test_users_may_edit_models_but_only_the_operator_writes_their_status(helm: Path) -> None:
    roles = {role["metadata"]["name"]: role for role in of_kind(render(helm), "ClusterRole")}
    for name in ("view", "edit", "admin"):
        role = roles[f"octavo-operator-modeldeployments-{name}"]
        granted = grants(role["rules"])
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{name}"] == "true"
        assert {verb for _, resource, verb in granted if resource == "modeldeployments/status"} == {"get"}
        writes = {verb for _, resource, verb in granted if resource == "modeldeployments"} - {"get", "list", "watch"}
        assert bool(writes) is (name != "view")


def test_a_namespaced_installation_has_no_cluster_role_of_its_own(helm: Path) -> None:
    flags = ("--set=watch.namespaces={team-a}", "--set=watch.nodes=false", "--set=rbac.aggregate=false")
    objects = render(helm, *flags)
    assert not of_kind(objects, "ClusterRole")
    assert not of_kind(objects, "ClusterRoleBinding")
    assert {role["metadata"]["namespace"] for role in of_kind(objects, "Role")} == {"team-a"}


def test_every_pod_passes_pod_security_restricted(helm: Path) -> None:
    objects = render(helm)
    specs = [item["spec"] for item in of_kind(objects, "Pod")]
    specs += [item["spec"]["template"]["spec"] for item in of_kind(objects, "Deployment")]
    assert len(specs) == 2
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_crd_is_kept_on_uninstall_unless_told_otherwise(helm: Path) -> None:
    keep = "helm.sh/resource-policy"
    crd = of_kind(render(helm), "CustomResourceDefinition")[0]
    assert crd["metadata"]["annotations"][keep] == "keep"
    crd = of_kind(render(helm, "--set=crds.keep=false"), "CustomResourceDefinition")[0]
    assert keep not in crd["metadata"].get("annotations", {})
    assert not of_kind(render(helm, "--set=crds.enabled=false"), "CustomResourceDefinition")


def test_monitors_are_made_only_where_their_api_is_served(helm: Path) -> None:
    flags = ("--set=metrics.serviceMonitor.enabled=true", "--set=metrics.podMonitor.enabled=true")
    assert not of_kind(render(helm, *flags), "ServiceMonitor")
    served = render(helm, *flags, "--api-versions=monitoring.coreos.com/v1")
    assert len(of_kind(served, "ServiceMonitor")) == 1
    assert len(of_kind(served, "PodMonitor")) == 1


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--set=operator.imag.tag=x", "imag"),
        ("--set=operator.workers=0", "workers"),
        ("--set=operator.logLevel=loud", "logLevel"),
        ("--set=watch.namespaces={Not_A_Name}", "namespaces"),
        ("--set=metrics.podMonitor.interval=soon", "interval"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Path, flag: str, named: str) -> None:
    done = run_helm(helm, "template", "octavo", str(CHART), flag)
    assert done.returncode != 0
    assert named in done.stderr


EVERYTHING = (
    "--set=networkPolicy.enabled=true",
    "--set=imagePullSecrets[0].name=registry",
    "--set=operator.priorityClassName=system-cluster-critical",
    "--set=operator.podAnnotations.a=b",
    "--set=operator.nodeSelector.pool=cpu",
    "--set=operator.tolerations[0].operator=Exists",
    "--set=operator.affinity.nodeAffinity.x=y",
    "--set=metrics.serviceMonitor.enabled=true",
    "--set=metrics.serviceMonitor.labels.release=prometheus",
    "--set=metrics.podMonitor.enabled=true",
    "--api-versions=monitoring.coreos.com/v1",
)


@pytest.mark.parametrize("namespaces", ["--set-json=watch.namespaces=[]", "--set=watch.namespaces={a,b}"])
def test_all_values_together_render_objects_of_this_release(helm: Path, namespaces: str) -> None:
    objects = render(helm, *EVERYTHING, namespaces)
    pod = of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]

    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["nodeSelector"] == {"pool": "cpu"}
    assert pod["affinity"] == {"nodeAffinity": {"x": "y"}}
    for item in objects:
        if item["kind"] != "CustomResourceDefinition":
            assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == "octavo", item["kind"]
    names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))


def test_the_network_policy_lets_the_operator_reach_the_api_server_and_be_probed(helm: Path) -> None:
    assert not of_kind(render(helm), "NetworkPolicy")
    flags = ("--set=networkPolicy.enabled=true", "--set=networkPolicy.apiServerPorts={16443}")
    policy = of_kind(render(helm, *flags), "NetworkPolicy")[0]["spec"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 16443}
    named = {port["name"] for port in operator_container(render(helm))["ports"]}
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == named


def test_the_old_operator_ends_before_the_new_one_starts(helm: Path) -> None:
    deployment = of_kind(render(helm), "Deployment")[0]["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {"type": "Recreate"}


def test_every_value_is_known_to_the_schema_and_has_a_comment() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path in leaves(yaml.safe_load(text)):
        part = schema
        for key in path:
            part = part["properties"][key] if "properties" in part else {}
            assert part or key in {"requests", "limits", "cpu", "memory"}, ".".join(path)
    for section in yaml.safe_load(text):
        block = text.split(f"\n{section}:", 1)[1].split("\n\n", 1)[0]
        before = text.split(f"\n{section}:", 1)[0].rsplit("\n", 1)[1]
        assert "#" in block or before.startswith("#"), section


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for key, value in values.items():
        found += leaves(value, (*path, key)) if isinstance(value, dict) and value else [(*path, key)]
    return found


def test_the_examples_in_the_chart_are_valid_model_deployments() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    applied = yaml.safe_load(dedent(notes.split("<<YAML\n", 1)[1].split("YAML", 1)[0]))
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    for example in [applied, *yaml.safe_load(annotations["artifacthub.io/crdsExamples"])]:
        assert (example["apiVersion"], example["kind"]) == (labels.API_VERSION, labels.KIND)
        ModelDeploymentSpec.model_validate(example["spec"])


def test_the_listed_images_are_those_that_are_run(helm: Path) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    listed = {i["name"]: i["image"] for i in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}
    container = operator_container(render(helm))
    assert listed["operator"] == container["image"]
    assert f"--runtime-image={listed['runtime']}" in container["args"]
