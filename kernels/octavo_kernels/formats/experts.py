"""Canonical layouts of one layer's routed experts: what loaders yield and every expert kernel's `prepare()` takes.

E experts, H hidden size, I intermediate size. Of `gate_up` the first I output rows are the gate, the next I the up
projection (never interleaved); both weights are [N, K] per expert, as in a linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.nvfp4 import Nvfp4Weight


@dataclass(frozen=True)
class Bf16Experts:
    """Unquantised experts."""

    gate_up: torch.Tensor
    """[E, 2I, H] bfloat16."""
    down: torch.Tensor
    """[E, H, I] bfloat16."""

    def __post_init__(self) -> None:
        require_dtype("gate_up", self.gate_up, torch.bfloat16)
        require_dtype("down", self.down, torch.bfloat16)
        require_shape("gate_up", self.gate_up, None, None, None)
        count, twice, hidden = self.gate_up.shape
        require_shape("down", self.down, count, hidden, _half(twice))

    @property
    def count(self) -> int:
        """E."""
        return self.gate_up.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all experts."""
        return self.gate_up.nbytes + self.down.nbytes


@dataclass(frozen=True)
class Int4Experts:
    """Experts in INT4 groups."""

    gate_up: Int4Weight
    """Logical shape [E, 2I, H]."""
    down: Int4Weight
    """Logical shape [E, H, I]."""

    def __post_init__(self) -> None:
        require_shape("gate_up.packed", self.gate_up.packed, None, None, None)
        count, twice, _ = self.gate_up.packed.shape
        require_shape("down.packed", self.down.packed, count, self.gate_up.in_features, None)
        if self.down.in_features != _half(twice):
            raise KernelInputError(f"down takes {self.down.in_features} features, gate_up gives {twice} / 2")

    @property
    def count(self) -> int:
        """E."""
        return self.gate_up.packed.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all experts, scales included."""
        return self.gate_up.nbytes + self.down.nbytes


@dataclass(frozen=True)
class Fp8BlockExperts:
    """Experts in FP8 with 128 x 128 block scales."""

    gate_up: Fp8BlockWeight
    """[E, 2I, H]; I must be a multiple of 128 unless a block may hold gate and up rows both, as checkpoints that fuse
    them before quantising do."""
    down: Fp8BlockWeight
    """[E, H, I]."""

    def __post_init__(self) -> None:
        require_shape("gate_up.values", self.gate_up.values, None, None, None)
        count, twice, hidden = self.gate_up.values.shape
        require_shape("down.values", self.down.values, count, hidden, _half(twice))

    @property
    def count(self) -> int:
        """E."""
        return self.gate_up.values.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all experts, scales included."""
        return self.gate_up.nbytes + self.down.nbytes


@dataclass(frozen=True)
class Nvfp4Experts:
    """Experts in NVFP4."""

    gate_up: Nvfp4Weight
    """Logical shape [E, 2I, H]; one global scale per expert."""
    down: Nvfp4Weight
    """Logical shape [E, H, I]."""

    def __post_init__(self) -> None:
        require_shape("gate_up.packed", self.gate_up.packed, None, None, None)
        count, twice, _ = self.gate_up.packed.shape
        require_shape("down.packed", self.down.packed, count, self.gate_up.in_features, None)
        if self.down.in_features != _half(twice):
            raise KernelInputError(f"down takes {self.down.in_features} features, gate_up gives {twice} / 2")

    @property
    def count(self) -> int:
        """E."""
        return self.gate_up.packed.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all experts, scales included."""
        return self.gate_up.nbytes + self.down.nbytes


CanonicalExperts = Bf16Experts | Int4Experts | Fp8BlockExperts | Nvfp4Experts


def _half(rows: int) -> int:
    if rows % 2:
        raise KernelInputError(f"gate_up has {rows} output rows, needed an even number: gate rows, then up rows")
    return rows // 2
