"""The chart renders what the operator needs, and refuses values that it does not know."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import config as configuration
from e2e.cluster.helm import fetch_helm
from e2e.cluster.locks import exclusive
from e2e.cluster.programs import helm_folder
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


def test_the_operator_accepts_the_arguments_that_it_is_given(helm: Path) -> None:
    container = operator_container(render(helm, "--set=watch.namespaces={a,b}"))
    options = parse_options(container["args"])
    assert options.namespaces == ("a", "b")
    assert options.runtime_image.endswith("/runtime:0.1.0")


def test_the_roles_grant_what_the_operator_needs_and_no_more(helm: Path) -> None:
    objects = render(helm)
    roles = {role["metadata"]["name"]: role["rules"] for role in of_kind(objects, "ClusterRole")}
    extra = {("serving.octavo.dev", "modeldeployments/finalizers", "update")}
    assert grants(roles["octavo-operator"]) == needed(REQUIRED) | extra
    assert grants(roles["octavo-operator-nodes"]) == needed(OPTIONAL)


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
