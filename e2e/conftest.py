"""Fixtures of the end-to-end tests: a cluster that is up, Octavo installed on it, a namespace for each test.

The cluster is taken down at the end only when these tests brought it up.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.api import Cluster
from e2e.cluster.errors import ClusterError
from e2e.installation import CHECKPOINT, ROOT, Installation, image_references, install_chart
from e2e.kube import Kube, eventually
from images.__main__ import pack_model
from images.reference import parse
from images.registry import Registry
from tests.hub_server import HubServer

UP_TIMEOUT_SECONDS = 3600
MODEL_NAMESPACES = itertools.count(1)


def cluster_command(command: str) -> None:
    """Run the cluster tool with its progress on screen."""
    subprocess.run([sys.executable, "-m", "e2e.cluster", command], cwd=ROOT, timeout=UP_TIMEOUT_SECONDS, check=True)


@pytest.fixture(scope="session")
def running_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The cluster of OCTAVO_KUBECONFIG, the one that is up, or one brought up for these tests."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    try:
        already = Cluster.connect()
    except ClusterError:
        already = None
    with capture.global_and_fixture_disabled():
        print()
        cluster_command("up")
    yield Cluster.connect()
    if already is None:
        with capture.global_and_fixture_disabled():
            cluster_command("down")


@pytest.fixture(scope="session")
def installed(running_cluster: Cluster, pytestconfig: pytest.Config) -> Installation:
    """Octavo from images of today's sources."""
    cluster = running_cluster
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        operator, runtime = image_references("push")
    model = pack_model(CHECKPOINT, f"{cluster.registry}/octavo/tiny-moe:test", {})
    install_chart(cluster, operator, runtime)
    registry = Registry(cluster.registry)
    return Installation(
        cluster=cluster,
        kube=Kube(cluster.kubectl_path, cluster.kubeconfig),
        operator_image=operator,
        runtime_image=runtime,
        other_operator_image=str(registry.retag(parse(operator), "other")),
        other_runtime_image=str(registry.retag(parse(runtime), "other")),
        model_source=f"oci://{model}",
    )


@pytest.fixture
def fresh_namespace(installed: Installation) -> Iterator[Callable[[], str]]:
    """Makes namespaces under Pod Security `restricted`; they are deleted after the test."""
    made: list[str] = []

    def make() -> str:
        name = f"e2e-{next(MODEL_NAMESPACES)}"
        installed.kube.run("delete", "namespace", name, "--ignore-not-found", timeout_seconds=120)
        installed.kube.namespace(name)
        made.append(name)
        return name

    yield make
    for name in made:
        installed.kube.run("delete", "namespace", name, "--wait=false")


@pytest.fixture
def bad_model(installed: Installation, tmp_path: Path) -> Callable[[str], str]:
    """Packs a checkpoint with a defect as an image; its source."""

    def make(defect: str) -> str:
        folder = tmp_path / defect
        if defect == "empty":
            folder.mkdir()
            (folder / "notes.txt").write_text("nothing here\n")
        elif defect == "dense":
            save_dense_model(folder)
        elif defect == "corrupt":
            shutil.copytree(CHECKPOINT, folder)
            weights = folder / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:100_000])
        else:
            raise ValueError(f"no such defect: {defect}")
        return "oci://" + pack_model(folder, f"{installed.registry}/octavo/bad-{defect}:test", {})

    return make


def save_dense_model(folder: Path) -> None:
    """A small Llama as transformers writes it: nothing is wrong with it but that it has no experts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture
def volume_with(installed: Installation) -> Iterator[Callable[[str, Path], str]]:
    """Puts a checkpoint on a PersistentVolume of the node and claims it; the claim's name."""
    made: list[str] = []

    def make(namespace: str, checkpoint: Path) -> str:
        if installed.cluster.external:
            pytest.skip("a hostPath volume needs the cluster to be on this machine")
        name = f"{namespace}-models"
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {**spec, "hostPath": {"path": str(checkpoint.parent), "type": "Directory"}},
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models"},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "volumeName": name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        installed.kube.apply(volume, "default")
        made.append(name)
        installed.kube.apply(claim, namespace)

        def bound() -> bool:
            found = installed.kube.get("pvc", "models", namespace)
            return bool(found and found["status"].get("phase") == "Bound")

        eventually("the claim is bound", bound, 60)
        return "models"

    yield make
    for name in made:
        installed.kube.run("delete", "pv", name, "--wait=false")


@pytest.fixture
def hub(installed: Installation) -> Iterator[str]:
    """A server on this machine that speaks the hub's protocol and has octavo/tiny-moe; its URL as pods see it."""
    host = installed.cluster.host_address
    if host is None:
        pytest.skip("pods of an external cluster may not reach this machine")
    with HubServer(CHECKPOINT, "octavo/tiny-moe", host=host).running() as server:
        yield server.endpoint
