"""Paged attention on CUDA: which kernel takes which rows, and the checks before a launch.

Rows with one query token go to `paged_decode`, which splits their context over programs; rows with more go to
`paged_prefill`. Lengths are on the device and stay there: a batch with as many tokens as rows is all decode's, in any
other both kernels are launched and each leaves the other's rows alone. Nothing here waits for the device.

A value that is NaN or infinite shows in the tokens that see it and in no other, as in `reference/`. In such a token two
things differ: among the last keys of a chunk the whole head is NaN, not only the value's element; elsewhere an infinite
value whose share rounds to 0 gives NaN, not infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import triton

from octavo_kernels.errors import KernelInputError, require_contiguous, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.step_inputs import check_pages
from octavo_kernels.triton.aot_case import ARCHITECTURES, DISTINCT, AotCase, Architecture
from octavo_kernels.triton.architecture import architecture_of, on_device_of_tensors
from octavo_kernels.triton.attend_pages import PER_HEAD, PER_TOKEN
from octavo_kernels.triton.attention_inputs import as_bytes, check_step, scale_layout
from octavo_kernels.triton.attention_tiles import (
    SPLITS_AT_ONCE,
    cases_by_tile,
    decode_tile,
    power_of_two,
    prefill_tile,
    scratch,
    splits_for,
)
from octavo_kernels.triton.paged_decode import merge_splits, paged_decode
from octavo_kernels.triton.paged_prefill import most_tiles, paged_prefill

LARGEST_HEAD_DIM = 256


@on_device_of_tensors
def paged_attention(
    query: torch.Tensor,
    *,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    positions: torch.Tensor,
    softmax_scale: float,
    page_tags: torch.Tensor | None = None,
    verdict: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `reference.paged_attention.paged_attention`; query and result may be bfloat16 too.

    With page_tags [num_pages] and verdict [R] int32 the pairs are compared with the page records in the kernel that
    reads them: a row with a page that is not its own, or outside the pool, is marked (RANGE, TAG) and reads as zero.
    Keys beyond the block table are not read: unchecked, a row whose context reaches past it is NaN. Raises
    KernelInputError for dtypes, shapes and layout, before any launch.
    """
    check_pages(k_pages, v_pages, k_scale, v_scale)
    num_pages, page_size, kv_heads, dim = k_pages.shape
    check_step(query, block_table, query_start, context_lens, positions, page_tags, verdict, num_pages)
    require_shape("query", query, None, None, dim)
    require_contiguous(k_pages=k_pages, v_pages=v_pages, k_scale=k_scale, v_scale=v_scale)
    tokens, heads, _ = query.shape
    rows, table_width = block_table.shape[:2]
    if heads % kv_heads:
        raise KernelInputError(f"query has {heads} heads, needed a multiple of {kv_heads} KV heads")
    if dim > LARGEST_HEAD_DIM:
        raise KernelInputError(f"query has head dimension {dim}, needed at most {LARGEST_HEAD_DIM}")
    out = torch.zeros_like(query)
    if out.numel() == 0 or rows == 0:
        return out
    group = heads // kv_heads
    fp8_pages = k_pages.dtype == fp8.DTYPE
    architecture = architecture_of(query)
    sizes = {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "DIM": dim,
        "BLOCK_D": max(16, power_of_two(dim)),
        "PAGE": page_size,
        "FP8": fp8_pages,
        "K_SCALES": scale_layout(k_scale),
        "V_SCALES": scale_layout(v_scale),
        "CHECK": verdict is not None,
    }
    pages = (as_bytes(k_pages), as_bytes(v_pages), k_scale, v_scale)
    step = (block_table, query_start, context_lens, positions, page_tags, verdict)
    scale_log2 = softmax_scale * math.log2(math.e)
    if tokens != rows:
        tile = prefill_tile(architecture, dim=dim, fp8_pages=fp8_pages)
        packed = min(group, tile.queries)
        grid = (most_tiles(tokens, rows, tile.queries // packed), kv_heads * triton.cdiv(group, packed))
        paged_prefill[grid](
            query, *pages, *step, out, rows, table_width, num_pages, 2, scale_log2, **sizes, **tile.options
        )
    tile = decode_tile(architecture, group=group, dim=dim, fp8_pages=fp8_pages)
    blocks = kv_heads * triton.cdiv(group, tile.queries)
    splits = splits_for(rows, blocks, table_width * page_size)
    # A batch with as many tokens as rows may still hold an empty row and one of two tokens.
    longest_row = tokens if tokens == rows else 1
    part_values, part_sums = scratch(query, rows, splits, dim)
    paged_decode[(rows, blocks, splits)](
        query,
        *pages,
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
            DIM=dim,
            BLOCK_D=sizes["BLOCK_D"],
            PAGE=page_size,
            BLOCK_N=tile.keys,
            SPLITS=splits,
            AT_ONCE=min(splits, SPLITS_AT_ONCE),
            CHECK=verdict is not None,
        )
    return out


_POINTERS = {
    "query": "*fp32",
    "k_scale": "*fp32",
    "v_scale": "*fp32",
    "block_table": "*i32",
    "query_start": "*i32",
    "context_lens": "*i32",
    "positions": "*i64",
}
_PARTS = {"part_values": "*fp32", "part_sums": "*fp32"}
_CHECKED = {"page_tags": "*i32", "verdict": "*i32"}
_NUMBERS = {"table_width": "i32", "num_pages": "i32", "scale_log2": "fp32"}


def _mma_of(queries: int) -> Callable[[Architecture], str]:
    """The instruction that a tile of so many queries must use."""
    large = {9: "wgmma", 10: "tcgen05"} if queries >= 64 else {}
    return lambda architecture: large.get(architecture // 10, "mma.sync")


def _case(
    *,
    prefill: bool,
    fp8_pages: bool,
    dim: int,
    group: int = 8,
    page: int = 16,
    check: bool = False,
    splits: int = 16,
    scales: int = PER_HEAD,
    architectures: tuple[Architecture, ...] = DISTINCT,
) -> list[AotCase]:
    stored = "*u8" if fp8_pages else "*bf16"
    signature = {**_POINTERS, "k_pages": stored, "v_pages": stored, **_NUMBERS}
    constants: dict[str, object] = {
        "KV_HEADS": 8,
        "GROUP": group,
        "DIM": dim,
        "BLOCK_D": power_of_two(dim),
        "PAGE": page,
        "FP8": fp8_pages,
        "K_SCALES": scales,
        "V_SCALES": scales,
        "CHECK": check,
    }
    if check:
        signature |= _CHECKED
    else:
        constants |= dict.fromkeys(_CHECKED)
    name = f"{'fp8' if fp8_pages else 'bf16'}/d{dim}/group{group}/page{page}"
    name += ("/token" if scales == PER_TOKEN else "") + ("/check" if check else "")
    if prefill:
        signature |= {"out": "*fp32", "rows": "i32", "shortest_row": "i32"}
        return cases_by_tile(
            f"paged_prefill/{name}",
            paged_prefill,
            lambda architecture: prefill_tile(architecture, dim=dim, fp8_pages=fp8_pages),
            signature=signature,
            constants=constants,
            max_registers=lambda _tile: 255,
            mma=_mma_of(64),
            architectures=architectures,
        )
    signature |= {"longest_row": "i32"} | ({"out": "*fp32"} if splits == 1 else _PARTS)
    constants |= {"SPLITS": splits} | (dict.fromkeys(_PARTS) if splits == 1 else {"out": None})
    return cases_by_tile(
        f"paged_decode/{name}{'/whole' if splits == 1 else ''}",
        paged_decode,
        lambda architecture: decode_tile(architecture, group=group, dim=dim, fp8_pages=fp8_pages),
        signature=signature,
        constants=constants,
        max_registers=lambda tile: 210 if tile.warps == 4 else 255,
        mma=_mma_of(64 if group > 16 else 16),
        architectures=architectures,
    )


_MERGE = AotCase(
    name="paged_decode/merge_splits/d128",
    kernel=merge_splits,
    signature={
        **_PARTS,
        "query_start": "*i32",
        "context_lens": "*i32",
        "positions": "*i64",
        "verdict": "*i32",
        "out": "*fp32",
        "table_width": "i32",
        "longest_row": "i32",
    },
    constants={
        "HEADS": 64,
        "DIM": 128,
        "BLOCK_D": 128,
        "PAGE": 16,
        "BLOCK_N": 64,
        "SPLITS": 16,
        "AT_ONCE": SPLITS_AT_ONCE,
        "CHECK": True,
    },
    max_registers=64,
)

AOT_CASES: tuple[AotCase, ...] = (
    _MERGE,
    *_case(prefill=False, fp8_pages=True, dim=128, check=True, architectures=ARCHITECTURES),
    *_case(prefill=False, fp8_pages=False, dim=128),
    *_case(prefill=False, fp8_pages=True, dim=128, page=64, splits=1, scales=PER_TOKEN),
    *_case(prefill=False, fp8_pages=True, dim=256, page=64),
    *_case(prefill=True, fp8_pages=True, dim=128, architectures=ARCHITECTURES),
    *_case(prefill=True, fp8_pages=False, dim=128, architectures=ARCHITECTURES),
)
