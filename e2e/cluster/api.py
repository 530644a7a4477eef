"""What tests and the demo use of the cluster, ours or one named by OCTAVO_KUBECONFIG."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from e2e.cluster import config as configuration
from e2e.cluster import record
from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.programs import program_path

T = TypeVar("T")
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Cluster:
    """A cluster that answers."""

    kubeconfig: Path
    kubectl_path: Path
    helm_path: Path | None
    """None where an external cluster is used and no helm is on PATH."""
    registry: str
    """host:port that images are pushed to and pulled from."""
    nodes: tuple[str, ...]
    host_address: str | None
    """This machine as pods see it; None for an external cluster."""
    external: bool

    @classmethod
    def connect(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """The cluster that is up.

        Raises:
            ClusterError: none is up, or it does not answer.
        """
        if kubeconfig := configuration.external_kubeconfig(environ):
            kubectl = _on_path("kubectl")
            helm = shutil.which("helm")
            registry = environ.get("OCTAVO_REGISTRY")
            if not registry:
                raise ClusterError("with OCTAVO_KUBECONFIG set, OCTAVO_REGISTRY must name a registry it can pull from")
            nodes = _node_names(kubectl, kubeconfig)
            return cls(kubeconfig, kubectl, Path(helm) if helm else None, registry, nodes, None, external=True)
        known = record.read(configuration.from_environment(environ).record)
        if known is None:
            raise ClusterError("no cluster is up: `make cluster-up` starts one")
        config = known.config()
        kubectl, helm_path = program_path(config.cache_dir, "kubectl"), program_path(config.cache_dir, "helm")
        nodes = _node_names(kubectl, config.kubeconfig)
        host = str(config.host_address)
        return cls(config.kubeconfig, kubectl, helm_path, config.registry, nodes, host, external=False)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 30.0) -> str:
        """Standard output of kubectl.

        Raises:
            ClusterError: it failed, with what it said.
        """
        return run([*self._kubectl(timeout_seconds), *arguments], timeout_seconds + 5, stdin=stdin)

    def get(self, *arguments: str) -> dict[str, object]:
        """`kubectl get ... -o json`, read."""
        found = json.loads(self.kubectl("get", *arguments, "--output=json"))
        if not isinstance(found, dict):
            raise ClusterError(f"kubectl get {' '.join(arguments)} answered no object")
        return found

    def apply(self, *objects: Mapping[str, object]) -> None:
        """Server-side apply."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(listing))

    def attempt(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """kubectl where failure is an answer: status and both outputs."""
        command = [*self._kubectl(30.0), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=35, check=False)

    def helm(self, *arguments: str, timeout_seconds: float = 120.0) -> str:
        """Standard output of helm.

        Raises:
            ClusterError: it failed, or there is none.
        """
        if self.helm_path is None:
            raise ClusterError("helm is not on PATH")
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return run([self.helm_path, *arguments], timeout_seconds, env=environment)

    def _kubectl(self, timeout_seconds: float) -> list[str]:
        limit = f"--request-timeout={max(1, round(timeout_seconds))}s"
        return [str(self.kubectl_path), f"--kubeconfig={self.kubeconfig}", limit]


def wait_for(what: str, condition: Callable[[], T | None], timeout_seconds: float = 60.0) -> T:
    """Ask until the answer is neither None nor False; the answer.

    Raises:
        ClusterError: not within the time, with what the last failed question said.
    """
    deadline = time.monotonic() + timeout_seconds
    trouble = ""
    while True:
        try:
            if answer := condition():
                return answer
        except ClusterError as error:
            trouble = f": {error}"
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {timeout_seconds:.0f} s{trouble}")
        time.sleep(POLL_SECONDS)


def _on_path(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise ClusterError(f"{name} is needed on PATH to use the cluster named by OCTAVO_KUBECONFIG")
    return Path(found)


def _node_names(kubectl: Path, kubeconfig: Path) -> tuple[str, ...]:
    names = run([kubectl, f"--kubeconfig={kubeconfig}", "--request-timeout=10s", "get", "nodes", "--output=name"], 15)
    return tuple(name.removeprefix("node/") for name in names.split())
