"""Multi-head latent attention on CUDA: which kernel takes which rows, as `paged_attention.py` has it."""

from __future__ import annotations

import math

import torch
import triton

from octavo_kernels.errors import KernelInputError, require_contiguous, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.step_inputs import check_rows_and_scale
from octavo_kernels.triton.aot_case import ARCHITECTURES, DISTINCT, AotCase, Architecture
from octavo_kernels.triton.architecture import architecture_of, on_device_of_tensors
from octavo_kernels.triton.attend_pages import PER_TOKEN, WHOLE_TENSOR
from octavo_kernels.triton.attention_inputs import as_bytes, check_step
from octavo_kernels.triton.attention_tiles import (
    SPLITS_AT_ONCE,
    cases_by_tile,
    mla_tile,
    power_of_two,
    scratch,
    splits_for,
)
from octavo_kernels.triton.mla_kernels import mla_decode, mla_prefill
from octavo_kernels.triton.paged_decode import merge_splits
from octavo_kernels.triton.paged_prefill import most_tiles

LARGEST_LATENT = 512


@on_device_of_tensors
def mla_attention(
    query: torch.Tensor,
    *,
    pages: torch.Tensor,
    scale: torch.Tensor,
    latent_dim: int,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    positions: torch.Tensor,
    softmax_scale: float,
    page_tags: torch.Tensor | None = None,
    verdict: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `reference.mla_attention.mla_attention`; query and result may be bfloat16 too.

    page_tags, verdict and keys beyond the table: as in `paged_attention`. Raises KernelInputError for dtypes, shapes
    and layout, before any launch.
    """
    check_rows_and_scale(pages, scale)
    num_pages, page_size, row_dim = pages.shape
    check_step(query, block_table, query_start, context_lens, positions, page_tags, verdict, num_pages)
    require_shape("query", query, None, None, row_dim)
    require_contiguous(pages=pages, scale=scale)
    if not 1 <= latent_dim < row_dim or latent_dim > LARGEST_LATENT:
        most = min(row_dim - 1, LARGEST_LATENT)
        raise KernelInputError(f"latent_dim is {latent_dim}, needed 1 to {most} of the {row_dim} elements of a row")
    tokens, heads, _ = query.shape
    rows, table_width = block_table.shape[:2]
    out = query.new_zeros((tokens, heads, latent_dim))
    if out.numel() == 0 or rows == 0:
        return out
    fp8_pages = pages.dtype == fp8.DTYPE
    tile = mla_tile(architecture_of(query), fp8_pages=fp8_pages)
    sizes = {
        "HEADS": heads,
        "LATENT": latent_dim,
        "BLOCK_L": max(16, power_of_two(latent_dim)),
        "ROPE": row_dim - latent_dim,
        "BLOCK_R": max(16, power_of_two(row_dim - latent_dim)),
        "PAGE": page_size,
        "FP8": fp8_pages,
        "SCALES": PER_TOKEN if scale.ndim else WHOLE_TENSOR,
        "CHECK": verdict is not None,
    }
    step = (block_table, query_start, context_lens, positions, page_tags, verdict)
    scale_log2 = softmax_scale * math.log2(math.e)
    if tokens != rows:
        packed = min(heads, tile.queries)
        grid = (most_tiles(tokens, rows, tile.queries // packed), triton.cdiv(heads, packed))
        mla_prefill[grid](
            query,
            as_bytes(pages),
            scale,
            *step,
            out,
            rows,
            table_width,
            num_pages,
            2,
            scale_log2,
            **sizes,
            **tile.options,
        )
    blocks = triton.cdiv(heads, tile.queries)
    splits = splits_for(rows, blocks, table_width * page_size)
    longest_row = tokens if tokens == rows else 1
    part_values, part_sums = scratch(query, rows, splits, latent_dim)
    mla_decode[(rows, blocks, splits)](
        query,
        as_bytes(pages),
        scale,
        *step,
        out,
        part_values,
        part_sums,
        table_width,
        num_pages,
        longest_row,
        scale_log2,
        SPLITS=splits,
        **sizes,
        **tile.options,
    )
    if splits > 1:
        merge_splits[(rows, heads)](
            part_values,
            part_sums,
            query_start,
            context_lens,
            positions,
            verdict,
            out,
            table_width,
            longest_row,
            HEADS=heads,
            DIM=latent_dim,
            BLOCK_D=sizes["BLOCK_L"],
            PAGE=page_size,
            BLOCK_N=tile.keys,
            SPLITS=splits,
            AT_ONCE=min(splits, SPLITS_AT_ONCE),
            CHECK=verdict is not None,
        )
    return out


_PARTS = {"part_values": "*fp32", "part_sums": "*fp32"}
_CHECKED = {"page_tags": "*i32", "verdict": "*i32"}


def _mma(_architecture: Architecture) -> str:
    return "mma.sync"


def _case(
    *,
    prefill: bool,
    heads: int,
    stored: str,
    scales: int = WHOLE_TENSOR,
    check: bool = False,
    architectures: tuple[Architecture, ...] = ARCHITECTURES,
) -> list[AotCase]:
    fp8_pages = stored == "*u8"
    signature = {"query": "*fp32", "pages": stored, "scale": "*fp32", "positions": "*i64", "scale_log2": "fp32"}
    signature |= dict.fromkeys(("block_table", "query_start", "context_lens"), "*i32")
    signature |= dict.fromkeys(("table_width", "num_pages"), "i32")
    constants: dict[str, object] = {
        "HEADS": heads,
        "LATENT": 512,
        "BLOCK_L": 512,
        "ROPE": 64,
        "BLOCK_R": 64,
        "PAGE": 64,
        "FP8": fp8_pages,
        "SCALES": scales,
        "CHECK": check,
    }
    signature |= _CHECKED if check else {}
    constants |= {} if check else dict.fromkeys(_CHECKED)
    if prefill:
        signature |= {"out": "*fp32", "rows": "i32", "shortest_row": "i32"}
    else:
        signature |= {"longest_row": "i32"} | _PARTS
        constants |= {"SPLITS": 16, "out": None}
    kind = "fp8" if fp8_pages else "bf16"
    layout = "/token" if scales == PER_TOKEN else ""
    return cases_by_tile(
        f"mla_{'prefill' if prefill else 'decode'}/{kind}/heads{heads}{layout}{'/check' if check else ''}",
        mla_prefill if prefill else mla_decode,
        lambda architecture: mla_tile(architecture, fp8_pages=fp8_pages),
        signature=signature,
        constants=constants,
        # A prefill has keys that not every query of a tile sees in a second loop, and so two sets of addresses.
        max_registers=lambda tile: 235 if not prefill and (tile.native_fp8 or not fp8_pages) else 255,
        mma=_mma,
        architectures=architectures,
    )


AOT_CASES: tuple[AotCase, ...] = (
    *_case(prefill=False, heads=16, stored="*u8", scales=PER_TOKEN, check=True),
    *_case(prefill=False, heads=16, stored="*bf16", architectures=DISTINCT),
    # With fewer heads than queries a tile holds several tokens: the keys that not all of them see are a second loop.
    *_case(prefill=True, heads=8, stored="*u8", scales=PER_TOKEN),
    *_case(prefill=True, heads=8, stored="*bf16", architectures=DISTINCT),
)
