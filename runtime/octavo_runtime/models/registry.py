"""Architecture name -> the model that implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from octavo_kernels.catalogue import Operations
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.architecture import Config
from octavo_runtime.loading.weights import WeightReader
from octavo_runtime.models import qwen3_moe
from octavo_runtime.models.base import Model


class Loader(Protocol):
    """Builds one rank's model. Returns it with the names, as regular expressions, of tensors it rightly ignores."""

    def __call__(
        self,
        config: Config,
        facts: ModelFacts,
        layout: ParallelLayout,
        reader: WeightReader,
        operations: Operations,
    ) -> tuple[Model, tuple[str, ...]]: ...


LOADERS: Mapping[str, Loader] = {"Qwen3MoeForCausalLM": qwen3_moe.load}
"""Equal to `contract.servable.SERVABLE_ARCHITECTURES`; a test compares them."""


def loader_of(architecture: str) -> Loader:
    """The loader of an architecture; raises Refused `ArchitectureUnsupported` with the list of those there are."""
    loader = LOADERS.get(architecture)
    if loader is None:
        raise Refused(
            "ArchitectureUnsupported",
            f"{architecture} is not implemented by this runtime; it serves {', '.join(sorted(LOADERS))}",
        )
    return loader
