"""How many pages the KV pool gets: `contract.footprint` arithmetic, with the derivation in words."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.footprint import PAGE_METADATA_BYTES, kv_bytes_per_token, page_bytes, pages_in
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling
from octavo_runtime.contract.refused import Refused


@dataclass(frozen=True)
class KvCapacity:
    """The size of one rank's KV pool."""

    num_pages: int
    """Pages in all, the NULL page included."""
    page_size: int
    page_bytes: int
    """Bytes of one page, its integrity record included."""
    derivation: str
    """How the number of pages follows from the budget, for the log."""

    @property
    def tokens(self) -> int:
        """Tokens that requests can hold."""
        return (self.num_pages - 1) * self.page_size

    @property
    def storage_bytes(self) -> int:
        """Bytes that the pool occupies; at most the budget."""
        return self.num_pages * self.page_bytes


def kv_capacity(
    facts: ModelFacts,
    kv: KvFormat,
    layout: ParallelLayout,
    budget_bytes: int,
    page_size: int,
    scaling: KvScaling = KvScaling.PER_TENSOR,
) -> KvCapacity:
    """Divide `budget_bytes` into pages of `page_size` tokens; refused when not even one page fits beside NULL."""
    one = page_bytes(facts, kv, layout, page_size, scaling)
    pages = pages_in(budget_bytes, facts, kv, layout, page_size, scaling)
    if pages < 2:
        raise Refused(
            "KvPoolTooSmall",
            f"--kv-cache-memory-bytes {budget_bytes} holds no page beside the NULL page: "
            f"two pages of {page_size} tokens in {kv} take {2 * one} bytes",
        )
    row, whole = (kv_bytes_per_token(facts, kv, layout, each) for each in (KvScaling.PER_TENSOR, scaling))
    token = f"({row} bytes of {kv} KV + {whole - row} bytes of scales)" if whole > row else f"{row} bytes of {kv} KV"
    tokens = (pages - 1) * page_size
    derivation = (
        f"{budget_bytes} bytes / ({page_size} tokens x {token} + {PAGE_METADATA_BYTES} bytes of integrity record) "
        f"= {pages} pages, less the NULL page = {tokens} tokens"
    )
    return KvCapacity(num_pages=pages, page_size=page_size, page_bytes=one, derivation=derivation)
