"""Which models this version of the bundled runtime serves; everything else is described, then refused with a reason."""

from __future__ import annotations

from octavo_runtime.contract.facts import CheckpointFormat, ModelFacts
from octavo_runtime.contract.refused import Refused

SERVABLE_ARCHITECTURES = frozenset({"Qwen3MoeForCausalLM"})
"""Architectures that `octavo_runtime.models` implements."""

SERVABLE_CHECKPOINTS = frozenset({CheckpointFormat.BF16, CheckpointFormat.FP16, CheckpointFormat.FP32})
"""Formats of routed experts that `octavo_runtime.loading` reads; it converts them to INT4 itself where asked to."""


def check_servable(facts: ModelFacts) -> None:
    """Raise Refused for a model that the bundled runtime cannot serve.

    Reasons: `NotMixtureOfExperts`, `ArchitectureUnsupported`, `CheckpointFormatUnsupported`.
    """
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
    if facts.format not in SERVABLE_CHECKPOINTS:
        raise Refused(
            "CheckpointFormatUnsupported",
            f"this version of the bundled runtime does not read checkpoints that are stored as {facts.format}; use the "
            f"model's unquantised checkpoint ({', '.join(sorted(SERVABLE_CHECKPOINTS))}), which is converted at load",
        )
