"""One decoder layer's kernels over a paged pool, from the upload of a step's tables to its verdict."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.formats import fp8
from octavo_kernels.formats.experts import Int4Experts
from octavo_kernels.formats.int4 import quantise
from octavo_kernels.formats.place import fill_of
from octavo_kernels.triton import digest, integrity
from octavo_kernels.triton.experts import TritonExperts
from octavo_kernels.triton.experts_weights import StoredExperts
from octavo_kernels.triton.kv_write import kv_write
from octavo_kernels.triton.paged_attention import paged_attention
from tests.kernels.paged import Scenario, scenario

KV_HEADS, GROUP, DIM = 2, 2, 16
HIDDEN = KV_HEADS * GROUP * DIM
EXPERTS, TOP_K, INTERMEDIATE = 4, 2, 32
STEP = 41


@dataclass(frozen=True)
class DecodeStep:
    """A batch with one new token per request."""

    pool: Scenario
    query: torch.Tensor
    scale: torch.Tensor
    places_before: torch.Tensor
    """Places of the pages as they were, so that the step can be done again."""
    all_pages: torch.Tensor
    prepared: StoredExperts
    ids: torch.Tensor
    weights: torch.Tensor
    experts: TritonExperts

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's output [T, HIDDEN] and the verdict [R]; launches only, no word from the device."""
        pool = self.pool
        pool.verdict.zero_()
        pool.places.copy_(self.places_before)
        rows = {"block_table": pool.block_table, "nonces": pool.nonces, "page_tags": pool.tags}
        read = {"context_lens": pool.context_lens, "page_places": pool.places, "verdict": pool.verdict}
        integrity.check_rows(
            **rows,
            **read,
            query_start=pool.query_start,
            bindings=pool.bindings,
            page_size=pool.page_size,
        )
        pages = {"k_pages": pool.k_pages, "v_pages": pool.v_pages, "k_scale": self.scale, "v_scale": self.scale}
        key = self.query[:, ::GROUP].contiguous()
        kv_write(
            key,
            -key,
            **pages,
            **rows,
            token_rows=pool.token_rows,
            positions=pool.positions,
            page_writers=pool.writers,
            page_places=pool.places,
            verdict=pool.verdict,
            last_layer=True,
        )
        seen = paged_attention(
            self.query,
            **pages,
            block_table=pool.block_table,
            query_start=pool.query_start,
            context_lens=pool.context_lens,
            positions=pool.positions,
            softmax_scale=DIM**-0.5,
            page_tags=pool.tags,
            verdict=pool.verdict,
        )
        out = self.experts.apply(seen.view(-1, HIDDEN), self.prepared, self.ids, self.weights)
        digest.digest_pages(k_pages=pool.k_pages, v_pages=pool.v_pages, pages=self.all_pages, fill=fill_of(pool.places))
        integrity.conclude(block_table=pool.block_table, **read, page_size=pool.page_size, step=STEP)
        return out, pool.verdict


def decode_step(contexts: tuple[int, ...] = (1, 16, 17, 300)) -> DecodeStep:
    """A clean step; each context ends with the token that the step writes."""
    pool = scenario(contexts, [1] * len(contexts), kv_heads=KV_HEADS, dim=DIM, dtype=fp8.DTYPE)
    generator = torch.Generator().manual_seed(5)
    rows = len(contexts)
    experts = TritonExperts()
    stack = Int4Experts(
        gate_up=quantise(torch.randn((EXPERTS, 2 * INTERMEDIATE, HIDDEN), generator=generator) * 0.05, 32),
        down=quantise(torch.randn((EXPERTS, HIDDEN, INTERMEDIATE), generator=generator) * 0.05, 32),
    )
    ids = torch.rand((rows, EXPERTS), generator=generator).argsort(dim=1)[:, :TOP_K].contiguous()
    return DecodeStep(
        pool=pool,
        query=torch.randn((rows, KV_HEADS * GROUP, DIM), generator=generator),
        scale=torch.ones(()),
        places_before=pool.places.clone(),
        all_pages=torch.arange(pool.tags.shape[0], dtype=torch.int32),
        prepared=experts.prepare(stack),
        ids=ids,
        weights=torch.rand((rows, TOP_K), generator=generator),
        experts=experts,
    )
