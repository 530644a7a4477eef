"""Device storage of the paged KV cache: one K and one V tensor per layer, and an integrity record per page.

Page 0 is the NULL page: padding rows and clamped page ids point at it, nothing is ever written to it, and its tag is
zero, which no request ever holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_runtime.contract.facts import AttentionKind, ModelFacts
from octavo_runtime.contract.footprint import page_bytes
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.kv.pool import NULL_PAGE, WRITER_NULL, WRITER_SHARED, RecordUpdates

__all__ = ["NULL_PAGE", "STORAGE_DTYPE", "WRITER_NULL", "WRITER_SHARED", "KvCache", "KvLayer", "PageRecords"]

STORAGE_DTYPE = {KvFormat.BF16: torch.bfloat16, KvFormat.FP8: torch.float8_e4m3fn}


@dataclass(frozen=True)
class KvLayer:
    """One layer's pages. `value = stored * scale`; scales are per tensor, FP32 scalars of shape [] (1.0 for BF16)."""

    k: torch.Tensor
    """[num_pages, page_size, kv_heads, head_dim], bfloat16 or float8_e4m3fn."""
    v: torch.Tensor
    """Same shape and dtype as `k`."""
    k_scale: torch.Tensor
    v_scale: torch.Tensor


@dataclass(frozen=True)
class PageRecords:
    """What the device knows of each page; all int32 [num_pages] (u32 bit patterns), updated by the allocator only.

    tag: generation, bumped on allocation and on free; odd means free. place: index of the page within its request and
    fill mark, `octavo_kernels.formats.place`; the KV-write operation raises the mark. writer: nonce of the only request
    that may store into it, or WRITER_SHARED / WRITER_NULL.
    """

    tag: torch.Tensor
    place: torch.Tensor
    writer: torch.Tensor

    def apply(self, updates: RecordUpdates) -> None:
        """Write the allocator's changes; ordered before whatever the device is asked to do next."""
        if updates.empty:
            return
        device = self.tag.device
        pages = torch.from_numpy(updates.pages).to(device, torch.int64)
        for record, values in (
            (self.tag, updates.tags),
            (self.place, updates.places),
            (self.writer, updates.writers),
        ):
            record.index_copy_(0, pages, torch.from_numpy(values).to(device))


@dataclass(frozen=True)
class KvCache:
    """All layers and the page records of one rank."""

    layers: tuple[KvLayer, ...]
    records: PageRecords
    page_size: int
    format: KvFormat

    @property
    def num_pages(self) -> int:
        """Pages of the pool, the NULL page included."""
        return self.records.tag.shape[0]

    @property
    def storage_bytes(self) -> int:
        """Bytes of all tensors that grow with the number of pages."""
        records = (self.records.tag, self.records.place, self.records.writer)
        pages = [t for layer in self.layers for t in (layer.k, layer.v)]
        return sum(t.numel() * t.element_size() for t in (*pages, *records))

    def commit(self) -> None:
        """Touch every byte, so that the memory is this process's now.

        Fresh zeros are only promised by the operating system: a pool that does not fit would end the process in the
        middle of traffic instead of at its start.
        """
        for layer in self.layers:
            for pages in (layer.k, layer.v):
                pages.view(torch.uint8).zero_()

    @classmethod
    def allocate(
        cls,
        facts: ModelFacts,
        layout: ParallelLayout,
        format: KvFormat,  # noqa: A002 - the field's name
        num_pages: int,
        page_size: int,
        device: torch.device,
    ) -> KvCache:
        """Allocate `num_pages` pages; raises ValueError for MLA models, whose rows come with their model."""
        if facts.attention.kind is not AttentionKind.GQA:
            raise ValueError(f"attention kind {facts.attention.kind} has no KV storage in this version")
        if num_pages < 2:
            needed = 2 * page_bytes(facts, format, layout, page_size)
            raise ValueError(f"the KV pool needs at least {needed} bytes for the NULL page and one page of {page_size}")
        shape = (num_pages, page_size, layout.kv_heads_per_rank, facts.attention.head_dim)
        one = torch.ones((), dtype=torch.float32, device=device)

        def pages() -> torch.Tensor:
            return torch.zeros(shape, dtype=STORAGE_DTYPE[format], device=device)

        def record(value: int) -> torch.Tensor:
            return torch.full((num_pages,), value, dtype=torch.int32, device=device)

        tag = record(1)
        tag[NULL_PAGE] = 0
        return cls(
            layers=tuple(KvLayer(pages(), pages(), one.clone(), one.clone()) for _ in range(facts.layers)),
            records=PageRecords(tag=tag, place=record(0), writer=record(WRITER_NULL)),
            page_size=page_size,
            format=format,
        )
