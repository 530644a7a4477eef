"""Octavo installed on a cluster by its chart, from images of today's sources. Used by the demo and by the tests."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.api import Cluster
from e2e.kube import Kube, Object, condition, eventually
from images.reference import parse

ROOT = Path(__file__).parent.parent
CHART = ROOT / "helm" / "octavo"
CHECKPOINT = ROOT / "e2e" / "models" / "tiny-moe"
OPERATOR_NAMESPACE = "octavo-system"
RELEASE = "octavo"
OPERATOR_SELECTOR = "app.kubernetes.io/name=octavo,app.kubernetes.io/component=operator"
BUILD_TIMEOUT_SECONDS = 3600


def image_references(command: str = "ref") -> tuple[str, str]:
    """(operator image, runtime image) of today's sources; with `push` they are built and pushed, progress on screen."""
    if command == "push":
        subprocess.run([sys.executable, "-m", "images", "push"], cwd=ROOT, timeout=BUILD_TIMEOUT_SECONDS, check=True)
    listed = subprocess.run(
        [sys.executable, "-m", "images", "ref", "operator", "runtime"],
        cwd=ROOT,
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    operator, runtime = listed.stdout.split()
    return operator, runtime


def image_values(key: str, reference: str) -> list[str]:
    """helm flags that set one image of the chart."""
    image = parse(reference)
    return [
        f"--set-string={key}.image.repository={image.host}/{image.repository}",
        f"--set-string={key}.image.tag={image.tag}",
    ]


def install_chart(cluster: Cluster, operator_image: str, runtime_image: str) -> str:
    """`helm upgrade --install` and wait until the operator is ready; helm's notes."""
    return cluster.helm(
        "upgrade",
        RELEASE,
        str(CHART),
        "--install",
        "--create-namespace",
        f"--namespace={OPERATOR_NAMESPACE}",
        *image_values("operator", operator_image),
        *image_values("runtime", runtime_image),
        "--wait",
        "--timeout=3m",
        timeout_seconds=200,
    )


@dataclass(frozen=True)
class Installation:
    """What the scenarios need to know of an installed Octavo."""

    cluster: Cluster
    kube: Kube
    operator_image: str
    runtime_image: str
    other_operator_image: str
    """Another tag of an image with the same program: to the operator's Deployment a new version."""
    other_runtime_image: str
    model_source: str
    checkpoint: Path = CHECKPOINT

    @property
    def registry(self) -> str:
        """host:port of the registry that the cluster pulls from."""
        return self.cluster.registry

    @property
    def routed(self) -> bool:
        """Whether this machine reaches Service and pod addresses directly."""
        return not self.cluster.external

    def upgrade(self, *, operator_image: str | None = None, runtime_image: str | None = None) -> None:
        """Upgrade the release to these images; None means today's."""
        install_chart(self.cluster, operator_image or self.operator_image, runtime_image or self.runtime_image)

    def operator_pod(self) -> Object:
        """The one operator pod that is not on its way out."""

        def one() -> Object | None:
            pods = self.kube.items("pods", OPERATOR_NAMESPACE, OPERATOR_SELECTOR)
            alive = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
            ready = [p for p in alive if condition(p, "Ready").get("status") == "True"]
            return ready[0] if len(alive) == 1 and ready else None

        return eventually("one ready operator pod", one, 60)

    def kill_operator(self) -> None:
        """End the operator pod without grace, as a node failure does."""
        self.kube.run(
            *("delete", "pod", "-n", OPERATOR_NAMESPACE, "-l", OPERATOR_SELECTOR),
            *("--grace-period=0", "--force", "--wait=false"),
        )

    def scale_operator(self, replicas: int) -> None:
        """Run no operator, or one again."""
        name = self.kube.items("deployments", OPERATOR_NAMESPACE, OPERATOR_SELECTOR)[0]["metadata"]["name"]
        self.kube.run("scale", "deployment", name, "-n", OPERATOR_NAMESPACE, f"--replicas={replicas}")

        def settled() -> bool:
            return len(self.kube.items("pods", OPERATOR_NAMESPACE, OPERATOR_SELECTOR)) == replicas

        eventually(f"{replicas} operator pods", settled, 60)

    def finished_requests(self, pod: Object, namespace: str) -> float:
        """Requests that one serving pod has finished, from its own metrics."""
        text = self._pod_metrics(pod, namespace)
        lines = [line for line in text.splitlines() if line.startswith("octavo_requests_finished_total")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def _pod_metrics(self, pod: Object, namespace: str) -> str:
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:8000/proxy/metrics"
        return self.kube.run("get", "--raw", path)

    def shape(self, namespace: str, found: Object) -> dict[str, Any]:
        """What must be the same after any history: plan, conditions and children without names that vary."""
        status = found["status"]
        children = {
            kind: sorted(
                item["metadata"]["name"] for item in self.kube.items(kind, namespace, "serving.octavo.dev/model")
            )
            for kind in ("deployments", "services", "serviceaccounts")
        }
        deployment = self.kube.items("deployments", namespace, "serving.octavo.dev/model")[0]
        return {
            "plan": status["plan"],
            "conditions": {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]},
            "replicas": status["replicas"],
            "children": children,
            "pod": deployment["spec"]["template"]["spec"],
        }
