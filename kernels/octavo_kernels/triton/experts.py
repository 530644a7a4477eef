"""Routed experts in Triton: sort the slots, multiply by gate and up, by down, and add each token's parts in order.

    ids -> token sort -> [gate and up product, SiLU * up] -> [down product * routing weight] -> sum in routing order

Nothing waits for the device: sizes of launches follow from T, k and E alone. Where an expert gets many tokens, weights
that the tensor cores do not multiply as they are stored are first dequantised into bounded scratch, some experts at a
time, and multiplied in bfloat16: the unpacking then costs once per weight instead of once per tile of tokens.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.experts import CanonicalExperts
from octavo_kernels.operations import ExpertKernel
from octavo_kernels.triton.aot_case import Architecture
from octavo_kernels.triton.architecture import architecture_of, on_device_of_tensors
from octavo_kernels.triton.experts_activations import to_fp8, to_nvfp4
from octavo_kernels.triton.experts_combine import combine
from octavo_kernels.triton.experts_dequantise import dequantise
from octavo_kernels.triton.experts_grouped import launch
from octavo_kernels.triton.experts_tiles import UNPACKED, Arithmetic, Tile, tile_for
from octavo_kernels.triton.experts_weights import StoredExperts, StoredMatrix, store_experts
from octavo_kernels.triton.token_sort import EXPERTS_AT_ONCE, SortedSlots, sort_slots

SCRATCH_BYTES = 512 << 20
"""Bound on the dequantised experts, and another on the intermediate results: more tokens are done in chunks. A single
expert or token always fits."""

DEQUANTISE_FROM = 256
"""Tokens per expert from which the extra pass over the weights pays: they are then unpacked for at least four tiles."""


class TritonExperts(ExpertKernel[StoredExperts]):
    """INT4, FP8 block, NVFP4 and BF16 experts.

    INT4 is W4A16. FP8 is W8A8 where tensor cores multiply e4m3, else weight-only. NVFP4 is W4A4 where tensor cores
    multiply e2m1 and both weights have input scales, else weight-only.
    """

    def __init__(
        self,
        architecture: Architecture | None = None,
        *,
        scratch_bytes: int = SCRATCH_BYTES,
        dequantise_from: int = DEQUANTISE_FROM,
    ) -> None:
        """`architecture` None: that of the weights' device."""
        self._architecture = architecture
        self._scratch_bytes = scratch_bytes
        self._dequantise_from = dequantise_from

    def prepare(self, canonical: CanonicalExperts) -> StoredExperts:
        """Alternate gate and up rows and transpose the scales; raises KernelInputError for sizes that do not divide."""
        if canonical.count > EXPERTS_AT_ONCE:
            raise KernelInputError(f"{canonical.count} experts, needed at most {EXPERTS_AT_ONCE}")
        values = canonical.gate_up if isinstance(canonical.gate_up, torch.Tensor) else canonical.gate_up.scales
        return store_experts(canonical, self._architecture or architecture_of(values))

    @on_device_of_tensors
    def apply(self, x: torch.Tensor, prepared: StoredExperts, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `ExpertKernel.apply`; x may be bfloat16, then so is the result. Ids out of range add nothing."""
        _check(x, prepared, ids, weights)
        out = torch.empty_like(x)
        top_k, hidden, intermediate = ids.shape[1], prepared.down.shape[1], prepared.down.shape[2]
        per_token = top_k * (4 * hidden + 2 * intermediate)
        step = max(1, self._scratch_bytes // per_token)
        for start in range(0, x.shape[0], step):
            chunk = slice(start, start + step)
            self._chunk(x[chunk], prepared, ids[chunk], weights[chunk], out[chunk])
        return out

    def _chunk(
        self, x: torch.Tensor, prepared: StoredExperts, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> None:
        experts, _, intermediate = prepared.down.shape
        slots, top_k = ids.numel(), ids.shape[1]
        per_expert = -(-slots // experts)
        unpacked = prepared.down.arithmetic in UNPACKED
        dequantised = unpacked and per_expert >= self._dequantise_from
        arithmetic = Arithmetic.BF16 if dequantised else prepared.down.arithmetic
        # Both products use one sort, so one extent of token tiles.
        tiles = [tile_for(arithmetic, per_expert, matrix.shape[2]) for matrix in (prepared.gate_up, prepared.down)]
        order = sort_slots(ids, experts, tiles[0].tokens)
        inner = torch.empty((slots, intermediate), dtype=torch.bfloat16, device=x.device)
        parts = torch.empty((slots, x.shape[1]), dtype=torch.float32, device=x.device)
        self._product(x, prepared.gate_up, tiles[0], order, ids, inner, top_k, None, arithmetic)
        self._product(inner, prepared.down, tiles[1], order, ids, parts, 1, weights, arithmetic)
        combine(parts, ids, experts, out)

    def _product(
        self,
        x: torch.Tensor,
        matrix: StoredMatrix,
        tile: Tile,
        order: SortedSlots,
        ids: torch.Tensor,
        out: torch.Tensor,
        slots_per_row: int,
        shares: torch.Tensor | None,
        arithmetic: Arithmetic,
    ) -> None:
        if arithmetic is Arithmetic.FP8:
            x, x_scales = to_fp8(x)
            launch(
                x, matrix, arithmetic, tile, order, out, slots_per_row=slots_per_row, x_scales=x_scales, shares=shares
            )
            return
        if arithmetic is Arithmetic.NVFP4 and matrix.input_scales is not None:
            x, x_scales = to_nvfp4(x, ids, matrix.input_scales, slots_per_row)
            launch(x, matrix, arithmetic, tile, order, out, slots_per_row=1, x_scales=x_scales, shares=shares)
            return
        x = x.to(torch.bfloat16)
        if arithmetic is matrix.arithmetic:
            launch(x, matrix, arithmetic, tile, order, out, slots_per_row=slots_per_row, shares=shares)
            return
        experts, _, k = matrix.shape
        elements = matrix.values.shape[1] * k
        at_once = min(experts, max(1, self._scratch_bytes // (2 * elements)))
        scratch = torch.empty(at_once * elements, dtype=torch.bfloat16, device=x.device)
        for first in range(0, experts, at_once):
            count = min(at_once, experts - first)
            some = dequantise(matrix, order.counts, scratch, first, count, paired=shares is None)
            launch(
                x, some, arithmetic, tile, order, out, slots_per_row=slots_per_row, shares=shares, first_expert=first
            )  # fmt: skip


def _check(x: torch.Tensor, prepared: StoredExperts, ids: torch.Tensor, weights: torch.Tensor) -> None:
    require_dtype("x", x, torch.float32, torch.bfloat16)
    require_dtype("ids", ids, torch.int64)
    require_dtype("weights", weights, torch.float32)
    require_shape("x", x, None, prepared.gate_up.shape[2])
    require_shape("ids", ids, x.shape[0], None)
    require_shape("weights", weights, *ids.shape)
    require_contiguous(x=x, ids=ids, weights=weights)
    if not ids.shape[1]:
        raise KernelInputError("ids names no expert per token, needed at least one")
