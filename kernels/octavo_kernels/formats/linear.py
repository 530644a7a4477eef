"""Canonical layouts of a quantised linear weight [N, K]: what loaders yield and a LinearKernel's `prepare()` takes."""

from __future__ import annotations

from enum import StrEnum

from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.nvfp4 import Nvfp4Weight

QuantisedWeight = Int4Weight | Fp8BlockWeight | Nvfp4Weight


class Activations(StrEnum):
    """What a product does with its activations."""

    EXACT = "exact"
    """They stay float32: weight-only quantisation."""
    QUANTISED = "quantised"
    """They are rounded to the type that the weight's format is multiplied in."""
