"""A frozen plan: what a Deployment was made from, kept in its annotation.

Pods are made from the template that is frozen here, not from what this version of the operator would build. So a new
operator, a new default image or a vanished node label changes no running pod; it only makes the plan outdated.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from octavo_operator.api.digest import digest
from octavo_operator.api.labels import PLAN
from octavo_operator.api.status import PoolPlanStatus
from octavo_runtime.contract.facts import ModelFacts

FORMAT = 1


class FrozenPlan(BaseModel):
    """Read back leniently: an older operator must not choke on what a newer one added."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, protected_namespaces=()
    )

    format: Annotated[int, Field(ge=1, le=FORMAT)] = FORMAT
    inputs: str
    """Hash of the plan-relevant part of the spec."""
    replan: str
    """Value of the replan annotation that this plan answered; empty when there was none."""
    source: str
    """The source with its revision resolved."""
    revision: str
    inspection: str
    """Hash of what the facts were read for."""
    image: str
    facts: ModelFacts
    pool: PoolPlanStatus
    """The plan itself, with its reasons, as status shows it."""
    template: dict[str, Any]
    """The pod template."""

    @property
    def plan_label(self) -> str:
        """Value of the plan label on this plan's pods."""
        return str(self.template["metadata"]["labels"][PLAN])

    def to_json(self) -> str:
        """The annotation's text."""
        return self.model_dump_json(by_alias=True, exclude_none=True)

    @classmethod
    def parse(cls, text: str | None) -> FrozenPlan | None:
        """The frozen plan, or None when the annotation is absent or not readable by this version."""
        if not text:
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


def plan_inputs(raw_spec: dict[str, Any]) -> str:
    """Hash of the spec as the user wrote it, less `replicas`, which changes no pod.

    Of the raw spec and not of the parsed one: new fields and defaults of a newer operator must not look like an edit.
    """
    return digest({key: value for key, value in raw_spec.items() if key != "replicas"})
