"""Nothing is written when the live object already is what we want, and something is when it is not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from octavo_operator.api.source import parse_source
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.planning.plan import Plan, PlanRequest
from octavo_operator.planning.planner import plan
from octavo_operator.resources.children import build_deployment, build_service
from octavo_operator.resources.frozen import FrozenPlan, plan_inputs
from octavo_operator.resources.matching import contains, is_applied
from octavo_operator.resources.ownership import Manifest, Owner
from octavo_operator.resources.serving_pod import Serving, build_pod_template
from octavo_operator.status.plan_report import pool_plan
from tests.operator.samples import CPU, IMAGE, TINY, spec, spec_document

OWNER = Owner("tiny", "team", "uid-1")


def deployment(model_spec: ModelDeploymentSpec) -> Manifest:
    """The Deployment of the tiny model on a CPU."""
    outcome = plan(PlanRequest(TINY, CPU))
    assert isinstance(outcome, Plan)
    source = parse_source(model_spec.model.source)
    frozen = FrozenPlan(
        inputs=plan_inputs(spec_document()),
        replan="",
        source=str(source),
        revision="r",
        inspection="i",
        image=IMAGE,
        facts=TINY,
        pool=pool_plan(model_spec.pool.name, outcome),
        template=build_pod_template(Serving(OWNER, model_spec, source, IMAGE, TINY, outcome)),
    )
    return build_deployment(OWNER, model_spec, frozen)


def as_served(manifest: Manifest) -> dict[str, Any]:
    """As a LIST of the real API server returns it: no kind, defaults added, quantities rewritten, empties dropped."""
    live: dict[str, Any] = copy.deepcopy(manifest)
    del live["apiVersion"], live["kind"]
    live["metadata"].update({"uid": "u", "resourceVersion": "7", "generation": 1})
    pod = live["spec"]["template"]["spec"]
    pod.update({"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"})
    server = pod["containers"][0]
    server["imagePullPolicy"] = "IfNotPresent"
    server["resources"]["requests"]["cpu"] = "0.5"
    server["readinessProbe"]["successThreshold"] = 1
    live["status"] = {"replicas": 1}
    return live


def test_what_the_api_server_adds_and_rewrites_is_no_difference() -> None:
    wanted = deployment(spec())
    assert is_applied(wanted, as_served(wanted))


@pytest.mark.parametrize(
    "edit",
    [
        lambda live: live["spec"].update(replicas=5),
        lambda live: live["spec"]["template"]["spec"]["containers"][0].update(image="other"),
        lambda live: live["spec"]["template"]["spec"]["containers"][0]["args"].append("--more"),
        lambda live: live["spec"]["template"]["spec"]["volumes"].pop(),
        lambda live: live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"].update(memory="1Mi"),
        lambda live: live["metadata"]["ownerReferences"].clear(),
        lambda live: live["metadata"]["annotations"].clear(),
        lambda live: live["metadata"]["labels"].pop("serving.octavo.dev/model"),
    ],
)
def test_what_somebody_changed_of_ours_is_noticed(edit: Any) -> None:
    wanted = deployment(spec())
    live = as_served(wanted)
    edit(live)
    assert not is_applied(wanted, live)


def test_a_field_that_we_no_longer_want_is_noticed_by_the_hash() -> None:
    before = deployment(spec(pools=[{"name": "cpu", "accelerator": "None", "nodeSelector": {"rack": "one"}}]))
    after = deployment(spec())
    live = as_served(before)
    containers = after["spec"]["template"]["spec"]["containers"]
    content = {"spec": {"replicas": 1, "template": {"spec": {"containers": containers}}}}
    assert contains(live, content), "field by field nothing is missing"
    assert not is_applied(after, live)


def test_what_others_add_beside_our_fields_is_theirs() -> None:
    wanted = build_service(OWNER)
    live: dict[str, Any] = copy.deepcopy(wanted)
    live["metadata"]["labels"]["team"] = "search"
    live["metadata"]["annotations"]["mesh"] = "on"
    live["spec"]["clusterIP"] = "10.96.0.7"
    assert is_applied(wanted, live)
