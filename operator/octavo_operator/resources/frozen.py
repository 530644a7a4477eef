"""A frozen plan: what a Deployment was made from, kept in its annotation.

Pods are made from the template that is frozen here, not from what this version of the operator would build. So a new
operator, a new default image or a vanished node label changes no running pod; it only makes the plan outdated. The
same goes for an older operator after a rollback: what it does not understand of a newer plan it keeps word by word.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from octavo_operator.api.digest import digest
from octavo_operator.api.labels import PLAN, POOL
from octavo_operator.api.source import parse_source
from octavo_operator.api.status import PoolPlanStatus
from octavo_runtime.contract.facts import ModelFacts

FORMAT = 1
T = TypeVar("T", bound=BaseModel)
PRUNINGS = 3
"""Unknown keys show in one validation; only what validators hide behind them takes another."""


@dataclass(frozen=True)
class Unreadable:
    """An annotation of which not even the envelope is understood: its Deployment is left alone."""

    replan: str
    """The replan annotation that it answered, as far as that can be read; else empty."""


class FrozenPlan(BaseModel):
    """The envelope (inputs, replan, source, image, template) is what pods are made from; no version may rename it.

    Read back leniently: unknown keys at any depth are ignored, and `facts` and `pool`, which only explain, are None
    where they are not understood. `text` keeps the annotation as it was read.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, protected_namespaces=()
    )

    format: Annotated[int, Field(ge=1)] = FORMAT
    inputs: str
    """Hash of the plan-relevant part of the spec."""
    replan: str
    """Value of the replan annotation that this plan answered; empty when there was none."""
    source: str
    """The source with its revision resolved."""
    revision: str = ""
    inspection: str = ""
    """Hash of what the facts were read for."""
    image: str
    facts: ModelFacts | None = None
    pool: PoolPlanStatus | None = None
    """The plan itself, with its reasons, as status shows it."""
    template: dict[str, Any]
    """The pod template."""
    text: Annotated[str | None, Field(exclude=True, repr=False)] = None
    """The annotation that this was read from: another version's plan is written back as it was."""

    @field_validator("source")
    @classmethod
    def _names_a_source(cls, value: str) -> str:
        parse_source(value)
        return value

    @field_validator("template")
    @classmethod
    def _is_labelled(cls, value: dict[str, Any]) -> dict[str, Any]:
        found = (value.get("metadata") or {}).get("labels") or {}
        if not {PLAN, POOL} <= set(found):
            raise ValueError(f"the template does not carry the labels {PLAN} and {POOL}")
        return value

    @property
    def plan_label(self) -> str:
        """Value of the plan label on this plan's pods."""
        return str(self.template["metadata"]["labels"][PLAN])

    @property
    def pool_name(self) -> str:
        """The pool that this plan is for."""
        return str(self.template["metadata"]["labels"][POOL])

    def to_json(self) -> str:
        """The annotation's text."""
        return self.text or self.model_dump_json(by_alias=True, exclude_none=True)

    @classmethod
    def parse(cls, text: str | None) -> FrozenPlan | Unreadable | None:
        """The frozen plan; None when there is no annotation, Unreadable when there is one that says nothing to us."""
        if not text:
            return None
        try:
            document = json.loads(text)
        except ValueError:
            return Unreadable("")
        if not isinstance(document, dict):
            return Unreadable("")
        facts = _understood(ModelFacts, document.get("facts"))
        pool = _understood(PoolPlanStatus, document.get("pool"))
        try:
            return cls.model_validate({**document, "facts": facts, "pool": pool, "text": text})
        except ValidationError:
            return Unreadable(str(document.get("replan", "")))


def _understood(kind: type[T], document: Any) -> T | None:
    """`document` without the keys that this version does not know; None when what is left is not a whole one."""
    for _ in range(PRUNINGS):
        try:
            return kind.model_validate(document)
        except ValidationError as error:
            unknown = [item["loc"] for item in error.errors() if item["type"] == "extra_forbidden"]
            for path in unknown:
                document = _without(document, path)
            if not unknown:
                return None
    return None


def _without(document: Any, path: tuple[int | str, ...]) -> Any:
    """A copy of `document` that lacks the key at `path`."""
    if not path:
        return document
    first, *rest = path
    if isinstance(document, dict):
        if not rest:
            return {key: value for key, value in document.items() if key != first}
        return {key: _without(value, tuple(rest)) if key == first else value for key, value in document.items()}
    if isinstance(document, list):
        return [_without(item, tuple(rest)) if number == first else item for number, item in enumerate(document)]
    return document


def plan_inputs(raw_spec: dict[str, Any]) -> str:
    """Hash of the spec as the user wrote it, less `replicas`, which changes no pod.

    Of the raw spec and not of the parsed one: new fields and defaults of a newer operator must not look like an edit.
    """
    return digest({key: value for key, value in raw_spec.items() if key != "replicas"})
