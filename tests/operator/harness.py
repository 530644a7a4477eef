"""One model in a small world: the reconciler over a fake API server, with hands to play kubelet and controllers."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from octavo_operator.api import labels
from octavo_operator.api.status import ConditionType
from octavo_operator.cluster.errors import Conflict
from octavo_operator.cluster.events import Announcement
from octavo_operator.cluster.kinds import DEPLOYMENTS, MODEL_DEPLOYMENTS, PODS, Kind
from octavo_operator.cluster.store import Key, Store
from octavo_operator.hardware.node import Node
from octavo_operator.reconcile import Reconciler, Settings
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.termination import Refusal, TerminationReport
from tests.operator.fake_api import FakeApi, JsonObject
from tests.operator.samples import IMAGE, SOURCE, TINY, node_body, spec_document

NAMESPACE = "team"
NAME = "tiny"
KEY = Key(NAMESPACE, NAME)
INLINE = {"source": SOURCE, "facts": TINY.model_dump(mode="json", by_alias=True, exclude_none=True)}
ROUNDS = 20
"""More reconciles than any scenario needs; one that does not settle is a defect."""


class Announcements:
    """Remembers what would become events."""

    def __init__(self) -> None:
        self.said: list[Announcement] = []

    async def publish(self, regarding: Any, announcement: Announcement) -> None:
        self.said.append(announcement)


class Cluster:
    """The fake API server with the operator beside it."""

    def __init__(self, *, image: str = IMAGE) -> None:
        self.api = FakeApi()
        self.events = Announcements()
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        self.nodes: tuple[Node, ...] | None = (Node.of(node_body("node1")),)
        self.image = image
        self.start_operator()

    def start_operator(self, image: str | None = None) -> None:
        """A fresh operator process: caches primed from a complete LIST."""
        self.image = image or self.image
        self.store = Store()
        for kind in (MODEL_DEPLOYMENTS, DEPLOYMENTS, PODS):
            for body in self.api.of(kind):
                self.store.put(kind, body)
        self.api.changed = self._watch
        self.reconciler = Reconciler(
            self.api,
            self.store,
            self.events,
            Settings(runtime_image=self.image),
            now=lambda: self.now,
            nodes=lambda: self.nodes,
        )

    def _watch(self, kind: Kind, body: JsonObject) -> None:
        if kind in (MODEL_DEPLOYMENTS, DEPLOYMENTS, PODS) or labels.MODEL in body["metadata"].get("labels", {}):
            self.store.put(kind, body)

    def submit(self, *, annotations: dict[str, str] | None = None, **changes: Any) -> None:
        """kubectl apply of the ModelDeployment."""
        present = self.api.objects.get((MODEL_DEPLOYMENTS.plural, NAMESPACE, NAME))
        body: JsonObject = {
            "apiVersion": labels.API_VERSION,
            "kind": labels.KIND,
            "metadata": {"name": NAME, "namespace": NAMESPACE, "annotations": annotations or {}},
            "spec": spec_document(**changes),
        }
        if present is not None and "status" in present:
            body["status"] = present["status"]
        self.api.put(MODEL_DEPLOYMENTS, body)

    async def settle(self) -> float | None:
        """Reconcile until nothing is written any more; the last due time."""
        for _ in range(ROUNDS):
            before = len(self.api.writes)
            try:
                due = await self.reconciler.reconcile(KEY)
            except Conflict:
                continue
            if len(self.api.writes) == before:
                return due
        raise AssertionError(f"not settled after {ROUNDS} reconciles: {self.api.writes[-5:]}")

    # Playing kubelet, controllers and scheduler.

    def roll_out(self, *, ready: bool = True) -> None:
        """The Deployment's controller makes the wanted pods of the present template; kubelets run them."""
        for pod in self.serving_pods():
            self.remove(pod)
        for deployment in self.api.of(DEPLOYMENTS):
            spec, name = deployment["spec"], deployment["metadata"]["name"]
            plan = spec["template"]["metadata"]["labels"][labels.PLAN]
            for number in range(spec["replicas"]):
                self.api.put(
                    PODS,
                    {
                        "metadata": {
                            "name": f"{name}-{plan}-{number}",
                            "namespace": NAMESPACE,
                            "labels": dict(spec["template"]["metadata"]["labels"]),
                        },
                        "spec": copy.deepcopy(spec["template"]["spec"]),
                        "status": {
                            "phase": "Running",
                            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                        },
                    },
                )
            status = {"observedGeneration": deployment["metadata"]["generation"], "replicas": spec["replicas"]}
            self.api.put(DEPLOYMENTS, {**deployment, "status": status})

    def remove(self, pod: JsonObject) -> None:
        """A pod goes."""
        self.api.objects.pop((PODS.plural, NAMESPACE, pod["metadata"]["name"]), None)
        self.store.remove(PODS, pod)

    def serving_pods(self) -> list[JsonObject]:
        return [p for p in self.api.of(PODS) if p["metadata"]["labels"][labels.COMPONENT] == labels.COMPONENT_SERVER]

    def inspect_pods(self) -> list[JsonObject]:
        return [p for p in self.api.of(PODS) if p["metadata"]["labels"][labels.COMPONENT] == labels.COMPONENT_INSPECT]

    def finish_inspection(self, outcome: ModelFacts | Refusal | str = TINY, image_ref: str = "") -> None:
        """The newest inspect pod ends with a report, or with other words."""
        pod = self.inspect_pods()[-1]
        message = outcome if isinstance(outcome, str) else _report(outcome).to_json()
        good = isinstance(outcome, ModelFacts)
        container: JsonObject = {
            "name": "inspect",
            "state": {
                "terminated": {
                    "exitCode": 0 if good else 3,
                    "message": message,
                    "finishedAt": self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            },
        }
        if image_ref:
            container["volumeMounts"] = [{"name": "model", "volumeStatus": {"image": {"imageRef": image_ref}}}]
        self.set_pod_status(pod, {"phase": "Succeeded" if good else "Failed", "containerStatuses": [container]})

    def set_pod_status(self, pod: JsonObject, status: JsonObject) -> None:
        """A kubelet speaks."""
        self.api.put(PODS, {**pod, "status": status})

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.now += timedelta(seconds=seconds)

    # Looking.

    @property
    def model(self) -> JsonObject:
        return self.api.objects[MODEL_DEPLOYMENTS.plural, NAMESPACE, NAME]

    @property
    def deployment(self) -> JsonObject:
        (only,) = self.api.of(DEPLOYMENTS)
        return only

    def condition(self, kind: ConditionType) -> JsonObject:
        """One condition of the status."""
        found: JsonObject = next(c for c in self.model["status"]["conditions"] if c["type"] == kind.value)
        return found

    def shape(self) -> JsonObject:
        """The end state without what differs between equal worlds: uids, versions, times."""
        return {f"{kind}/{name}": _scrub(body) for (kind, _, name), body in sorted(self.api.objects.items())}


async def served(**changes: Any) -> Cluster:
    """A cluster in which the tiny model is ready."""
    cluster = Cluster()
    cluster.submit(**{"model": INLINE, **changes})
    await cluster.settle()
    cluster.roll_out()
    await cluster.settle()
    return cluster


def _report(outcome: ModelFacts | Refusal) -> TerminationReport:
    return TerminationReport(facts=outcome) if isinstance(outcome, ModelFacts) else TerminationReport(refusal=outcome)


def _scrub(part: Any) -> Any:
    if isinstance(part, dict):
        dropped = {"uid", "resourceVersion", "generation", "observedGeneration", "lastTransitionTime", labels.APPLIED}
        return {key: _scrub(value) for key, value in part.items() if key not in dropped}
    return [_scrub(item) for item in part] if isinstance(part, list) else part
