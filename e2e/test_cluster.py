"""The cluster itself: what it can do, that it survives what kills its parts, and that nothing of it stays.

    .venv/bin/python -m pytest e2e/test_cluster.py

It runs a cluster of its own, with a name, addresses and images of its own, beside the one that a user may have up.
"""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import cgroups, config, down, processes, record
from e2e.cluster.api import Cluster, wait_for
from e2e.cluster.components import all_components
from e2e.cluster.errors import ClusterError
from images.oci import Settings, pack
from images.reference import Reference
from images.registry import Registry

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and containers need root"),
    pytest.mark.skipif("OCTAVO_KUBECONFIG" in os.environ, reason="an external cluster is not ours to test"),
]
ROOT = Path(__file__).parent.parent
NAMESPACE = "cluster-test"
ENVIRONMENT = {
    **os.environ,
    "OCTAVO_CLUSTER": "octotest",
    "OCTAVO_NODE_NETWORK": "10.199.0.0/24",
    "OCTAVO_POD_NETWORK": "10.188.0.0/16",
    "OCTAVO_SERVICE_NETWORK": "10.196.0.0/16",
}
CONFIG = config.from_environment(ENVIRONMENT)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tool as a user does."""
    argv = [sys.executable, "-m", "e2e.cluster", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=1800, check=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    done = command("up", "--nodes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    yield Cluster.connect(ENVIRONMENT)
    command("down")


@pytest.fixture(scope="module")
def server_image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small HTTP server, by digest."""
    folder = tmp_path_factory.mktemp("answer")
    source = ROOT / "e2e" / "cluster" / "testdata" / "answer.c"
    subprocess.run(["cc", "-Os", "-static", "-s", "-o", folder / "answer", source], check=True, timeout=60)
    image = pack({"answer": folder / "answer"}, Settings(entrypoint=("/answer",), user="65532:65532"), folder)
    target = Reference(cluster.registry, "test/answer", "dev")
    return target.at(Registry(cluster.registry).push(image, target))


@pytest.fixture(scope="module")
def data_image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that holds a file and nothing to run, packed by the command that packs models."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "nested").mkdir()
    (folder / "nested" / "text").write_text("from an image volume")
    argv = [sys.executable, "-m", "images", "pack-model", str(folder), f"{cluster.registry}/test/data:dev"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace in which only pods of the restricted standard are let in."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    yield NAMESPACE
    cluster.attempt("delete", "namespace", NAMESPACE, "--wait=false")


RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_spec(server_image: str, data_image: str) -> dict[str, object]:
    return {
        "containers": [
            {
                "name": "answer",
                "image": server_image,
                "args": ["8000", "/model/nested/text"],
                "ports": [{"containerPort": 8000}],
                "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
                "securityContext": RESTRICTED,
                "volumeMounts": [{"name": "model", "mountPath": "/model", "readOnly": True}],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "8Mi", "ephemeral-storage": "1Mi"},
                    "limits": {"memory": "32Mi"},
                },
            }
        ],
        "volumes": [{"name": "model", "image": {"reference": data_image, "pullPolicy": "IfNotPresent"}}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "answer"}},
            }
        ],
        "terminationGracePeriodSeconds": 1,
    }


@pytest.fixture(scope="module")
def service_address(cluster: Cluster, namespace: str, server_image: str, data_image: str) -> str:
    """A Service in front of two Ready pods, one on each node; its address."""
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "answer", "namespace": namespace},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "answer"}},
                "template": {"metadata": {"labels": {"app": "answer"}}, "spec": pod_spec(server_image, data_image)},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "answer", "namespace": namespace},
            "spec": {"selector": {"app": "answer"}, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    )
    arguments = ["rollout", "status", "deployment/answer", f"--namespace={namespace}", "--timeout=90s"]
    cluster.kubectl(*arguments, timeout_seconds=95)
    address = cluster.kubectl(
        "get", "service", "answer", f"--namespace={namespace}", "--output=jsonpath={.spec.clusterIP}"
    )
    wait_for("the Service to be known to kube-proxy", lambda: answers(address))
    return address


def answers(address: str) -> bool:
    try:
        fetch(address)
    except OSError:
        return False
    return True


def fetch(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/", timeout=5) as response:
        return str(response.read().decode())


def pods(cluster: Cluster, path: str) -> list[str]:
    found = cluster.kubectl(
        "get", "pods", f"--namespace={NAMESPACE}", "--selector=app=answer", f"--output=jsonpath={path}"
    )
    return found.split()


def test_everything_is_healthy_and_is_what_it_says(cluster: Cluster) -> None:
    status = command("status")
    assert status.returncode == 0, status.stdout
    assert "node node2: Ready" in status.stdout
    assert json.loads(cluster.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"] == "v1.37.2"


def test_nodes_know_their_disks_without_which_nothing_is_ever_evicted(cluster: Cluster) -> None:
    for node in cluster.nodes:
        summary = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))
        assert summary["node"]["fs"]["capacityBytes"] > 0


def test_a_second_start_changes_nothing(cluster: Cluster) -> None:
    before = running_pids()
    done = command("up", "--nodes", "2")
    assert done.returncode == 0
    assert "already up" in done.stdout
    assert running_pids() == before


def test_a_service_answers_this_machine_with_what_an_image_volume_holds(service_address: str) -> None:
    assert {fetch(service_address) for _ in range(10)} == {"from an image volume"}


@pytest.mark.usefixtures("cluster")
def test_an_address_that_no_service_has_is_refused_at_once_and_not_left_to_time_out() -> None:
    with socket.socket() as client:
        client.settimeout(30)
        refused = client.connect_ex((str(CONFIG.service_network[-2]), 80))
    assert refused == errno.EHOSTUNREACH


def test_pods_run_on_both_nodes_and_each_is_reached_directly(cluster: Cluster, service_address: str) -> None:
    assert set(pods(cluster, "{.items[*].spec.nodeName}")) == {"node1", "node2"}
    for address in pods(cluster, "{.items[*].status.podIP}"):
        assert fetch(f"{address}:8000") == "from an image volume"


def test_logs_and_exec_reach_the_container_on_either_node(cluster: Cluster, service_address: str) -> None:
    for pod in pods(cluster, "{.items[*].metadata.name}"):
        assert "listening" in cluster.kubectl("logs", pod, f"--namespace={NAMESPACE}")
        said = cluster.kubectl("exec", pod, f"--namespace={NAMESPACE}", "--", "/answer")
        assert said == "usage: answer PORT FILE\n"


def test_a_pod_below_the_restricted_standard_is_refused_with_the_reason(
    cluster: Cluster, namespace: str, server_image: str
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "privileged", "namespace": namespace},
        "spec": {"containers": [{"name": "a", "image": server_image, "securityContext": {"privileged": True}}]},
    }
    refused = cluster.attempt("create", "--filename=-", stdin=json.dumps(pod))
    assert refused.returncode != 0
    assert 'violates PodSecurity "restricted' in refused.stderr


def test_a_node_may_not_speak_for_another(cluster: Cluster) -> None:
    kubeconfig = CONFIG.state_dir / "node1.kubeconfig"
    refused = cluster.attempt(f"--kubeconfig={kubeconfig}", "label", "node", "node2", "stolen=yes")
    assert refused.returncode != 0
    assert "forbidden" in refused.stderr.lower()


def known() -> record.Record:
    found = record.read(CONFIG.record)
    assert found is not None
    return found


def running_pids() -> dict[str, int]:
    """Process ids of every component that runs."""
    configuration, roots = known().config(), cgroups.hierarchies()
    programs = {name: Path(path) for name, path in known().programs.items()}
    components = all_components(configuration, programs)
    found = {component.name: processes.find(component, configuration, roots) for component in components}
    return {name: process.pid for name, process in found.items() if process is not None}


@pytest.mark.parametrize("victim", ["node1-kubelet", "node2-containerd", "etcd", "kube-apiserver"])
def test_whatever_is_killed_is_started_again_and_nothing_else_is(
    cluster: Cluster, service_address: str, victim: str
) -> None:
    before, pods_before = running_pids(), sorted(pods(cluster, "{.items[*].metadata.uid}"))
    os.kill(before[victim], signal.SIGKILL)
    wait_for(f"{victim} to be gone", lambda: victim not in running_pids())
    sick = command("status")
    assert sick.returncode == 1
    assert "dead" in sick.stdout
    mended = command("up", "--nodes", "2")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    after = running_pids()
    assert after.pop(victim) != before.pop(victim)
    assert after == before
    assert sorted(pods(cluster, "{.items[*].metadata.uid}")) == pods_before
    wait_for("the Service to answer again", lambda: answers(service_address))
    assert fetch(service_address) == "from an image volume"


def test_after_everything_was_killed_at_once_it_comes_up_again(cluster: Cluster) -> None:
    cgroups.kill_all(known().config().cgroup, cgroups.hierarchies())
    assert command("status").returncode == 1
    mended = command("up", "--nodes", "2")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert command("status").returncode == 0


def test_down_leaves_nothing_and_may_be_repeated(cluster: Cluster) -> None:
    before = known()
    done = command("down")
    assert done.returncode == 0, done.stderr
    assert down.leftovers(before.config(), before) == []
    again = command("down")
    assert (again.returncode, again.stdout) == (0, "no cluster is up\n")
    assert command("status").returncode == 1
    with pytest.raises(ClusterError, match="no cluster is up"):
        Cluster.connect(ENVIRONMENT)


def test_a_reboot_is_survived_by_up_and_by_down() -> None:
    """A boot leaves the state folder and a record of processes that are no more, and nothing else."""
    assert command("up").returncode == 0
    before = known()
    cgroups.kill_all(before.config().cgroup, cgroups.hierarchies())
    down.remove(before.config(), before)
    before.config().state_dir.mkdir()
    record.write(record.Record(**{**vars(before), "boot_id": "of-yesterday"}), before.config().record)
    assert command("up").returncode == 0
    assert command("down").returncode == 0
    assert down.leftovers(before.config(), before) == []
