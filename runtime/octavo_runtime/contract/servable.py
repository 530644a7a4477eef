"""Which models this version of the bundled runtime serves; everything else is described, then refused with a reason."""

from __future__ import annotations

from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.refused import Refused

SERVABLE_ARCHITECTURES = frozenset({"Qwen3MoeForCausalLM"})
"""Architectures that `octavo_runtime.models` implements."""


def check_servable(facts: ModelFacts) -> None:
    """Raise Refused `NotMixtureOfExperts` or `ArchitectureUnsupported` for a model that the runtime cannot serve."""
    served = ", ".join(sorted(SERVABLE_ARCHITECTURES))
    if facts.experts is None:
        raise Refused(
            "NotMixtureOfExperts",
            f"{facts.architecture} is a dense model; Octavo serves mixture-of-experts models: {served}",
        )
    if facts.architecture not in SERVABLE_ARCHITECTURES:
        raise Refused(
            "ArchitectureUnsupported",
            f"this version of the bundled runtime does not serve {facts.architecture}; it serves {served}",
        )
