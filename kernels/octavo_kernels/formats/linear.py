"""Canonical layouts of a quantised linear weight [N, K]: what loaders yield and a LinearKernel's `prepare()` takes."""

from __future__ import annotations

from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.nvfp4 import Nvfp4Weight

QuantisedWeight = Int4Weight | Fp8BlockWeight | Nvfp4Weight
