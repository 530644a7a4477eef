"""First step: the model's facts, from the spec, from what is remembered, or from an inspect pod."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from octavo_operator.api import labels
from octavo_operator.api.digest import digest
from octavo_operator.api.source import HubSource, ImageSource, Source, parse_source
from octavo_operator.api.spec import ModelDeploymentSpec
from octavo_operator.api.status import ModelStatus
from octavo_operator.inspection.decision import Failed, Found, Inspection, Running, Start, attempt_of, decide
from octavo_operator.inspection.pods import Trouble
from octavo_operator.reconcile.settings import Settings
from octavo_operator.reconcile.world import JsonObject, World
from octavo_operator.resources.frozen import FrozenPlan
from octavo_operator.resources.inspect_pod import build_inspect_pod
from octavo_operator.resources.ownership import Manifest
from octavo_operator.status.findings import Finding, no, timestamp, unknown, yes
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.servable import check_servable

COMMIT = re.compile(r"[0-9a-f]{7,64}")
"""Revisions that a hub resolved; a hash of headers starts with its algorithm."""
FORGET_SECONDS = 1.0
"""After facts were read from a pod and written to status, the next reconcile deletes the pod."""


@dataclass(frozen=True)
class ModelStep:
    """What came of looking for the facts."""

    finding: Finding
    model: ModelStatus | None = None
    """Facts and resolved source, when they are known."""
    start: Manifest | None = None
    """An inspect pod to make."""
    obsolete: tuple[JsonObject, ...] = ()
    """Inspect pods that are of no further use."""
    requeue_seconds: float | None = None


def inspection_key(spec: ModelDeploymentSpec, replan: str) -> str:
    """Hash of what facts are valid for."""
    secret = spec.model.secret_ref.name if spec.model.secret_ref else ""
    return digest([spec.model.source, secret, replan])


def find_model(
    world: World, spec: ModelDeploymentSpec, frozen: FrozenPlan | None, replan: str, settings: Settings
) -> ModelStep:
    """The model's facts, or what is being done to get them."""
    source = parse_source(spec.model.source)
    key = inspection_key(spec, replan)
    known = _inline(spec, source, key) or _remembered(world, frozen, key)
    if known is not None:
        return _servable(known, obsolete=world.inspect_pods())
    image = spec.engine.image or settings.runtime_image
    wanted = build_inspect_pod(world.owner, spec, image, replan, attempt=1)
    inspection = wanted["metadata"]["labels"][labels.INSPECTION]
    pods = world.inspect_pods()
    ours = sorted((p for p in pods if p["metadata"]["labels"].get(labels.INSPECTION) == inspection), key=attempt_of)
    others = tuple(pod for pod in pods if pod not in ours)
    model_image = source.reference if isinstance(source, ImageSource) else None
    outcome = decide(ours, model_image, world.now)
    if isinstance(outcome, Found):
        return _servable(_resolved(source, key, outcome), obsolete=others, requeue_seconds=FORGET_SECONDS)
    if isinstance(outcome, Start):
        manifest = build_inspect_pod(world.owner, spec, image, replan, outcome.attempt)
        return ModelStep(
            _finding(Running(outcome.previous), spec.model.source), start=manifest, obsolete=(*others, *ours[:-1])
        )
    # The attempt before the one that runs stays: it says why there had to be another.
    kept = 2 if isinstance(outcome, Running) else 1
    return ModelStep(
        _finding(outcome, spec.model.source), obsolete=(*others, *ours[:-kept]), requeue_seconds=_wait(outcome, world)
    )


def _servable(model: ModelStatus, obsolete: tuple[JsonObject, ...], requeue_seconds: float | None = None) -> ModelStep:
    """Facts are known; whether the bundled runtime serves such a model is said here already."""
    facts = model.facts
    try:
        check_servable(facts)
    except Refused as refused:
        advice = f"{refused.message}; choose another spec.model.source"
        return ModelStep(no(refused.reason, advice), model, obsolete=obsolete, requeue_seconds=requeue_seconds)
    text = f"{facts.architecture}, {facts.parameters.total:,} parameters, {facts.format} checkpoint at {model.revision}"
    return ModelStep(yes("Inspected", text), model, obsolete=obsolete, requeue_seconds=requeue_seconds)


def _inline(spec: ModelDeploymentSpec, source: Source, key: str) -> ModelStatus | None:
    facts = spec.model.facts
    return None if facts is None else _model_status(source, facts, key)


def _remembered(world: World, frozen: FrozenPlan | None, key: str) -> ModelStatus | None:
    """From the frozen plan or from status, if they are about the same thing."""
    if frozen is not None and frozen.facts is not None and frozen.inspection == key:
        return ModelStatus(
            source=frozen.source, revision=frozen.revision, inspection=frozen.inspection, facts=frozen.facts
        )
    raw: Any = (world.model.get("status") or {}).get("model")
    try:
        model = None if raw is None else ModelStatus.model_validate(raw)
    except ValidationError:  # written by another version: inspect again
        return None
    return model if model is not None and model.inspection == key else None


def _resolved(source: Source, key: str, found: Found) -> ModelStatus:
    """Facts of an inspect pod; a model image becomes the very digest that was looked at, where the kubelet says it."""
    if isinstance(source, ImageSource) and found.image_ref:
        pinned = source.pinned(found.image_ref)
        revision = pinned.reference.rpartition("@")[2] if "@" in pinned.reference else found.facts.revision
        return ModelStatus(source=str(pinned), revision=revision, inspection=key, facts=found.facts)
    return _model_status(source, found.facts, key)


def _model_status(source: Source, facts: ModelFacts, key: str) -> ModelStatus:
    if isinstance(source, HubSource) and COMMIT.fullmatch(facts.revision):
        source = HubSource(source.repository, facts.revision)
    return ModelStatus(source=str(source), revision=facts.revision, inspection=key, facts=facts)


def _finding(outcome: Inspection, source: str) -> Finding:
    match outcome:
        case Running(trouble) if trouble is not None:
            return no(trouble.reason, _about(source, trouble))
        case Failed(trouble, None) | Failed(trouble, _, True):
            return no(trouble.reason, _about(source, trouble))
        case Failed(trouble, retry_at) if retry_at is not None:
            return no(trouble.reason, f"{_about(source, trouble)}; next attempt at {timestamp(retry_at)}")
        case _:
            return unknown("Inspecting", "an inspect pod reads the checkpoint's config and tensor headers")


def _about(source: str, trouble: Trouble) -> str:
    """A pod speaks of paths inside itself; the user wrote a source."""
    named = source in trouble.message or trouble.message.startswith("spec.")
    return trouble.message if named else f"spec.model.source {source}: {trouble.message}"


def _wait(outcome: Inspection, world: World) -> float | None:
    if isinstance(outcome, Failed) and outcome.retry_at is not None:
        return max(0.0, (outcome.retry_at - world.now).total_seconds())
    return None
