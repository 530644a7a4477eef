"""kubectl, with a time limit on every call, for scenarios that look at the state of the world."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Object = dict[str, Any]

POLL_SECONDS = 0.5


class KubeError(Exception):
    """kubectl refused or failed; the message is what it said."""


class NeverHappened(AssertionError):
    """A condition did not come true in time; the message says what was seen last."""


def eventually(what: str, probe: Callable[[], T | None], timeout_seconds: float) -> T:
    """The first truthy value of `probe`; raises NeverHappened after `timeout_seconds`.

    A probe that raises KubeError or AssertionError is asked again, and its last word goes into the message.
    """
    deadline = time.monotonic() + timeout_seconds
    last = "nothing"
    while time.monotonic() < deadline:
        try:
            value = probe()
        except (KubeError, AssertionError) as error:
            last = str(error)
        else:
            if value:
                return value
            last = repr(value)
        time.sleep(POLL_SECONDS)
    raise NeverHappened(f"{what}: not within {timeout_seconds:.0f} s; seen last: {last}")


@dataclass(frozen=True)
class Kube:
    """One cluster seen through kubectl."""

    kubectl: Path
    kubeconfig: Path

    def run(self, *words: str, stdin: str | None = None, timeout_seconds: float = 30) -> str:
        """Standard output of `kubectl WORDS`; raises KubeError with kubectl's own message."""
        argv = [str(self.kubectl), f"--kubeconfig={self.kubeconfig}", *words]
        try:
            done = subprocess.run(
                argv, input=stdin, capture_output=True, text=True, timeout=timeout_seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise KubeError(f"kubectl {' '.join(words[:4])}: no answer in {timeout_seconds:.0f} s") from error
        if done.returncode != 0:
            raise KubeError(done.stderr.strip())
        return done.stdout

    def apply(self, manifest: Object | str, namespace: str) -> str:
        """Apply strictly: an unknown field is an error, as `kubectl apply` has it by default."""
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        return self.run("apply", "-n", namespace, "--validate=strict", "-f", "-", stdin=text)

    def get(self, kind: str, name: str, namespace: str) -> Object | None:
        """The object, or None when there is none."""
        text = self.run("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def items(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        """All objects of a kind in a namespace, perhaps by label."""
        words = ["get", kind, "-n", namespace, "-o", "json"]
        if selector:
            words += ["-l", selector]
        found: list[Object] = json.loads(self.run(*words))["items"]
        return found

    def patch(self, kind: str, name: str, namespace: str, patch: Object) -> None:
        """Merge patch."""
        self.run("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(patch))

    def delete(self, kind: str, name: str, namespace: str, *, wait: bool = False) -> None:
        """Delete; an object that is not there is fine."""
        self.run("delete", kind, name, "-n", namespace, "--ignore-not-found", f"--wait={str(wait).lower()}")

    def namespace(self, name: str, *, restricted: bool = True) -> None:
        """Create a namespace; `restricted` enforces that Pod Security level in it."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"} if restricted else {}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}, "default")


def condition(obj: Object | None, kind: str) -> Object:
    """A status condition by type, or an empty one."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or []
    found: Object = next((c for c in conditions if c["type"] == kind), {})
    return found


def conditions_text(obj: Object | None) -> str:
    """All conditions in one line each, for messages."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or []
    return "\n".join(f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions) or "no conditions"
