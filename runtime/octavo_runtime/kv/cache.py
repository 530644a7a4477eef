"""Device storage of the paged KV cache: one allocation for all layers, and an integrity record per page.

Page 0 is the NULL page: padding rows and clamped page ids point at it, nothing is ever written to it, and its tag is
zero, which no request ever holds.

    rows    [planes, num_pages, page_size, ...]     GQA: plane 2i is layer i's K, plane 2i + 1 its V; MLA: plane i is
    scales  [planes, num_pages, page_size(, heads)] layer i's latent rows. Scales per (token, head) only, FP8 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from octavo_kernels.operations import DigestPages
from octavo_runtime.contract.facts import AttentionKind, ModelFacts
from octavo_runtime.contract.footprint import kv_row_elements, kv_scales_per_token, page_bytes
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling
from octavo_runtime.kv.records import PageRecords, upload
from octavo_runtime.kv.updates import DeviceUpdates, PageCopy

STORAGE_DTYPE = {KvFormat.BF16: torch.bfloat16, KvFormat.FP8: torch.float8_e4m3fn}


@dataclass(frozen=True)
class KvLayer:
    """One layer's pages. `value = stored * scale`."""

    k: torch.Tensor
    """[num_pages, page_size, kv_heads, head_dim], bfloat16 or float8_e4m3fn."""
    v: torch.Tensor
    """Same shape and dtype as `k`."""
    k_scale: torch.Tensor
    """FP32: [] per tensor (1.0 for BF16), or [num_pages, page_size, kv_heads] per (token, head)."""
    v_scale: torch.Tensor


@dataclass(frozen=True)
class MlaLayer:
    """One layer's pages of a model with multi-head latent attention."""

    rows: torch.Tensor
    """[num_pages, page_size, kv_lora_rank + qk_rope_head_dim], bfloat16 or float8_e4m3fn."""
    scale: torch.Tensor
    """FP32: [] per tensor (1.0 for BF16), or [num_pages, page_size] per token."""


@dataclass(frozen=True)
class KvCache:
    """All layers and the page records of one rank."""

    layers: tuple[KvLayer, ...]
    """Views of the storage; empty for MLA."""
    mla_layers: tuple[MlaLayer, ...]
    """Views of the storage; empty for GQA."""
    records: PageRecords
    page_size: int
    format: KvFormat
    storage: torch.Tensor
    """[planes, num_pages, page_size, ...]."""
    scales: torch.Tensor | None
    """[planes, num_pages, page_size(, kv_heads)] FP32 where they are stored beside the pages."""

    @property
    def num_pages(self) -> int:
        """Pages of the pool, the NULL page included."""
        return self.records.tag.shape[0]

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.layers) + len(self.mla_layers)

    @property
    def storage_bytes(self) -> int:
        """Bytes of all tensors that grow with the number of pages."""
        return sum(planes.nbytes for planes in self._planes()) + self.records.nbytes

    def payload(self, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A layer's pages as the digest operations take them: K and V, or MLA rows and None."""
        if self.mla_layers:
            return self.mla_layers[layer].rows, None
        return self.layers[layer].k, self.layers[layer].v

    def commit(self) -> None:
        """Touch every byte, so that the memory is this process's now.

        Fresh zeros are only promised by the operating system: a pool that does not fit would end the process in the
        middle of traffic instead of at its start.
        """
        for planes in self._planes():
            planes.view(torch.uint8).zero_()

    def apply(self, updates: DeviceUpdates, digest_pages: DigestPages) -> torch.Tensor:
        """Write the page records, then copy pages; ordered before whatever the device is asked to do next.

        Returns int32 [copies] on the device, in the order of `updates.copies`: 1 where the target's full digest (all
        layers, scales included) differs from what the source's was before, else 0.
        """
        self.records.apply(updates.records)
        wrong = torch.zeros(len(updates.copies), dtype=torch.int32, device=self.storage.device)
        if updates.copies:
            for planes in self._planes():
                wrong |= _copy(planes, updates.copies, digest_pages)
        return wrong

    def _planes(self) -> tuple[torch.Tensor, ...]:
        return (self.storage,) if self.scales is None else (self.storage, self.scales)

    @classmethod
    def allocate(
        cls,
        facts: ModelFacts,
        layout: ParallelLayout,
        format: KvFormat,  # noqa: A002 - the field's name
        num_pages: int,
        page_size: int,
        device: torch.device,
        scaling: KvScaling = KvScaling.PER_TENSOR,
    ) -> KvCache:
        """Allocate `num_pages` pages; raises ValueError when that is not one beside the NULL page."""
        if num_pages < 2:
            needed = 2 * page_bytes(facts, format, layout, page_size, scaling)
            raise ValueError(f"the KV pool needs at least {needed} bytes for the NULL page and one page of {page_size}")
        mla = facts.attention.kind is AttentionKind.MLA
        heads = layout.kv_heads_per_rank
        planes = facts.layers if mla else 2 * facts.layers
        elements = kv_row_elements(facts, layout)
        row = (elements,) if mla else (heads, elements // (2 * heads))
        slots = (planes, num_pages, page_size)
        storage = torch.zeros((*slots, *row), dtype=STORAGE_DTYPE[format], device=device)
        scales, factors = None, torch.ones(planes, dtype=torch.float32, device=device)
        if kv_scales_per_token(facts, format, layout, scaling):
            scales = factors = torch.zeros((*slots, *row[:-1]), dtype=torch.float32, device=device)
        return cls(
            layers=() if mla else tuple(_pairs(storage, factors)),
            mla_layers=tuple(map(MlaLayer, storage, factors)) if mla else (),
            records=PageRecords.blank(num_pages, device),
            page_size=page_size,
            format=format,
            storage=storage,
            scales=scales,
        )


def _pairs(storage: torch.Tensor, factors: torch.Tensor) -> list[KvLayer]:
    """K and V of each layer, which are neighbours."""
    return [KvLayer(storage[i], storage[i + 1], factors[i], factors[i + 1]) for i in range(0, len(storage), 2)]


def _copy(planes: torch.Tensor, copies: Sequence[PageCopy], digest_pages: DigestPages) -> torch.Tensor:
    """Copy the first slots of pages within each of `planes` [planes, num_pages, page_size, ...]; int32 [copies] of
    whether the digests differ. Sources are digested before anything is written, as one may be another copy's target."""
    count, num_pages, page_size = planes.shape[:3]
    flat = planes.view(torch.uint8).view(count * num_pages, page_size, -1)
    offsets = np.arange(count, dtype=np.int64)[:, None] * num_pages
    ends = np.array([(copy.source, copy.target, copy.tokens) for copy in copies], dtype=np.int64).T
    pages = np.stack([offsets + ends[0], offsets + ends[1], np.broadcast_to(ends[2], (count, len(copies)))])
    sources, targets, fill = upload(pages.reshape(3, -1), planes.device)
    before = digest_pages(k_pages=flat, v_pages=None, pages=sources, fill=fill)
    slots = np.concatenate([np.arange(copy.tokens, dtype=np.int64) for copy in copies])
    bases = np.repeat(ends[:2] * page_size, ends[2], axis=1) + slots
    read, written = upload(bases, planes.device)
    rows = flat.view(count, num_pages * page_size, -1)
    rows.index_copy_(1, written, rows.index_select(1, read))
    after = digest_pages(k_pages=flat, v_pages=None, pages=targets, fill=fill)
    return (before != after).view(count, -1).any(dim=0).to(torch.int32)
