# ruff: noqa: N803, SIM102
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""KV write on CUDA: one program rounds and stores one token's heads, or refuses and marks the row's verdict.

Refusals, scales and bytes are those of `reference/kv_write.py`, bit for bit. All programs of a call must see the fill
marks as they were before it, also in the last layer, which advances them: so there the accepted places are noted and a
second kernel raises the marks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.formats import fp8
from octavo_kernels.formats.place import FILL_MASK, require_page_size
from octavo_kernels.formats.verdict import UNCONCLUDED, Finding
from octavo_kernels.step_inputs import check_pages, check_rows_and_scale
from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors
from octavo_kernels.triton.attend_pages import PER_HEAD, PER_TOKEN, page_or_null
from octavo_kernels.triton.attention_inputs import as_bytes, scale_layout
from octavo_kernels.triton.attention_tiles import power_of_two
from octavo_kernels.triton.e4m3 import encode_e4m3

_RANGE = tl.constexpr(int(Finding.RANGE))
_TAG = tl.constexpr(int(Finding.TAG))
_WRITER = tl.constexpr(int(Finding.WRITER))
_SLOT = tl.constexpr(int(Finding.SLOT))
_UNCONCLUDED = tl.constexpr(UNCONCLUDED)
_FILL_MASK = tl.constexpr(FILL_MASK)
_PER_HEAD = tl.constexpr(PER_HEAD)
_PER_TOKEN = tl.constexpr(PER_TOKEN)
_LARGEST_FLOAT = tl.constexpr(torch.finfo(torch.float32).max)
_SMALLEST_NORMAL = tl.constexpr(torch.finfo(torch.float32).tiny)
_LARGEST_E4M3 = tl.constexpr(fp8.MAX)

HEADS_AT_ONCE = 8
"""Heads of a token that one program stores."""
TOKENS_AT_ONCE = 128
"""Tokens whose fill marks one program raises."""


@triton.jit
def dynamic_scale(rows):
    """`fp8.dynamic_scale` of rows [H, D]: [H]."""
    magnitude = tl.where(rows == rows, tl.abs(rows), 0.0)
    largest = tl.max(tl.minimum(magnitude, _LARGEST_FLOAT), 1)
    scale = tl.div_rn(largest, tl.full(largest.shape, _LARGEST_E4M3, tl.float32))
    return tl.where(scale < _SMALLEST_NORMAL, 1.0, scale)


@triton.jit
def store_heads(
    rows,
    pages,
    scale,
    token,
    slot,
    heads,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FP8: tl.constexpr,
    SCALES: tl.constexpr,
):
    """Round some heads of row `token` into the cache slot `slot`."""
    dims = tl.arange(0, BLOCK_D)
    real = (heads < HEADS)[:, None] & (dims < DIM)[None, :]
    places = (token.to(tl.int64) * HEADS + heads)[:, None] * DIM + dims[None, :]
    elements = tl.load(rows + places, mask=real, other=0.0).to(tl.float32)
    if SCALES == _PER_TOKEN:
        factor = dynamic_scale(elements)
        tl.store(scale + slot * HEADS + heads, factor, mask=heads < HEADS)
    elif SCALES == _PER_HEAD:
        factor = tl.load(scale + heads, mask=heads < HEADS, other=1.0)
    else:
        factor = tl.load(scale + heads * 0)
    scaled = tl.div_rn(elements, tl.broadcast_to(factor[:, None], elements.shape))
    stored = encode_e4m3(scaled) if FP8 else scaled.to(tl.bfloat16)
    tl.store(pages + (slot * HEADS + heads)[:, None] * DIM + dims[None, :], stored, mask=real)


@triton.jit(do_not_specialize=("rows", "table_width", "num_pages"))
def store_rows(
    key,
    value,
    k_pages,
    v_pages,
    k_scale,
    v_scale,
    block_table,
    token_rows,
    positions,
    nonces,
    page_tags,
    page_writers,
    page_places,
    verdict,
    accepted,
    rows,
    table_width,
    num_pages,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    FP8: tl.constexpr,
    K_SCALES: tl.constexpr,
    V_SCALES: tl.constexpr,
    HAS_VALUE: tl.constexpr,
    LAST_LAYER: tl.constexpr,
):
    """Grid (T, ceil(HEADS / BLOCK_H)). accepted [T] int32 gets each token's page, or -1 where the store is refused."""
    token = tl.program_id(0)
    row = tl.load(token_rows + token)
    # A token of no row is stored nowhere; the row that misses it is found unfilled.
    real_row = (row >= 0) & (row < rows)
    row = tl.where(real_row, row, 0)
    position = tl.load(positions + token)
    logical = position // PAGE
    slot = position % PAGE
    inside = (position >= 0) & (logical < table_width)
    entry = tl.minimum(tl.maximum(logical, 0), table_width - 1)
    pair = block_table + (row * table_width + entry) * 2
    page = tl.load(pair)
    tag = tl.load(pair + 1)
    known = page_or_null(page, num_pages)
    refused = tl.where(inside & ((page <= 0) | (page >= num_pages)), _RANGE, 0)
    refused |= tl.where(tl.load(page_tags + known) != tag, _TAG, 0)
    refused |= tl.where(tl.load(page_writers + known) != tl.load(nonces + row), _WRITER, 0)
    refused |= tl.where(real_row & inside & (slot >= (tl.load(page_places + known) & _FILL_MASK)), 0, _SLOT)
    if LAST_LAYER:
        if tl.program_id(1) == 0:
            tl.store(accepted + token, tl.where(refused == 0, known, -1))
    if refused != 0:
        tl.atomic_or(verdict + row, refused | _UNCONCLUDED, mask=real_row, sem="relaxed")
    else:
        heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        place = known.to(tl.int64) * PAGE + slot
        store_heads(key, k_pages, k_scale, token, place, heads, HEADS, DIM, BLOCK_D, FP8, K_SCALES)
        if HAS_VALUE:
            store_heads(value, v_pages, v_scale, token, place, heads, HEADS, DIM, BLOCK_D, FP8, V_SCALES)


@triton.jit(do_not_specialize=("tokens",))
def raise_fill(accepted, positions, page_places, tokens, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (ceil(T / BLOCK)). The fill mark of each accepted token's page reaches at least past its slot.

    The word above the mark is the same before and after, so what is loaded here may be older than what is raised.
    """
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    page = tl.load(accepted + token, mask=token < tokens, other=-1)
    position = tl.load(positions + token, mask=token < tokens, other=0)
    mark = page_places + tl.maximum(page, 0)
    filled = (tl.load(mark, mask=page > 0, other=0) & ~_FILL_MASK) | ((position % PAGE).to(tl.int32) + 1)
    tl.atomic_max(mark, filled, mask=page > 0, sem="relaxed")


@on_device_of_tensors
def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    block_table: torch.Tensor,
    token_rows: torch.Tensor,
    positions: torch.Tensor,
    nonces: torch.Tensor,
    page_tags: torch.Tensor,
    page_writers: torch.Tensor,
    page_places: torch.Tensor,
    verdict: torch.Tensor,
    last_layer: bool,
) -> None:
    """As `reference.kv_write.kv_write`; key and value may be bfloat16 too."""
    check_pages(k_pages, v_pages, k_scale, v_scale)
    for name, rows in (("key", key), ("value", value)):
        require_dtype(name, rows, torch.float32, torch.bfloat16)
        require_shape(name, rows, positions.shape[0], *k_pages.shape[2:])
    require_dtype("value", value, key.dtype)
    require_contiguous(key=key, value=value, k_pages=k_pages, v_pages=v_pages, k_scale=k_scale, v_scale=v_scale)
    tables = (block_table, token_rows, positions, nonces, page_tags, page_writers, page_places, verdict)
    _write(key, value, k_pages, v_pages, k_scale, v_scale, *tables, last_layer=last_layer)


@on_device_of_tensors
def mla_write(
    row: torch.Tensor,
    *,
    pages: torch.Tensor,
    scale: torch.Tensor,
    block_table: torch.Tensor,
    token_rows: torch.Tensor,
    positions: torch.Tensor,
    nonces: torch.Tensor,
    page_tags: torch.Tensor,
    page_writers: torch.Tensor,
    page_places: torch.Tensor,
    verdict: torch.Tensor,
    last_layer: bool,
) -> None:
    """As `reference.kv_write.mla_write`; row may be bfloat16 too."""
    check_rows_and_scale(pages, scale)
    require_dtype("row", row, torch.float32, torch.bfloat16)
    require_shape("row", row, positions.shape[0], pages.shape[2])
    require_contiguous(row=row, pages=pages, scale=scale)
    # A latent row is the key of one head without a value, and its scale per token one per token and head.
    scale = scale.unsqueeze(-1) if scale.ndim else scale
    tables = (block_table, token_rows, positions, nonces, page_tags, page_writers, page_places, verdict)
    _write(row.unsqueeze(1), None, pages.unsqueeze(2), None, scale, None, *tables, last_layer=last_layer)


def _write(
    key: torch.Tensor,
    value: torch.Tensor | None,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor | None,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    token_rows: torch.Tensor,
    positions: torch.Tensor,
    nonces: torch.Tensor,
    page_tags: torch.Tensor,
    page_writers: torch.Tensor,
    page_places: torch.Tensor,
    verdict: torch.Tensor,
    *,
    last_layer: bool,
) -> None:
    num_pages, page_size, heads, dim = k_pages.shape
    tokens, rows = positions.shape[0], verdict.shape[0]
    require_page_size(page_size)
    require_shape("block_table", block_table, rows, None, 2)
    require_shape("token_rows", token_rows, tokens)
    require_shape("nonces", nonces, rows)
    for name, of_tokens in (("token_rows", token_rows), ("positions", positions)):
        require_dtype(name, of_tokens, torch.int64)
    words = {
        "block_table": block_table,
        "nonces": nonces,
        "page_tags": page_tags,
        "page_writers": page_writers,
        "page_places": page_places,
        "verdict": verdict,
    }
    for name, word in words.items():
        require_dtype(name, word, torch.int32)
        if name.startswith("page_"):
            require_shape(name, word, num_pages)
    require_contiguous(token_rows=token_rows, positions=positions, **words)
    if tokens == 0 or rows == 0:
        return
    if not block_table.shape[1]:
        raise KernelInputError("block_table has rows of no pages, needed at least one")
    accepted = torch.empty(tokens, dtype=torch.int32, device=key.device) if last_layer else None
    at_once = min(HEADS_AT_ONCE, power_of_two(heads))
    store_rows[(tokens, triton.cdiv(heads, at_once))](
        key,
        value,
        as_bytes(k_pages),
        None if v_pages is None else as_bytes(v_pages),
        k_scale,
        v_scale,
        block_table,
        token_rows,
        positions,
        nonces,
        page_tags,
        page_writers,
        page_places,
        verdict,
        accepted,
        rows,
        block_table.shape[1],
        num_pages,
        HEADS=heads,
        DIM=dim,
        BLOCK_H=at_once,
        BLOCK_D=power_of_two(dim),
        PAGE=page_size,
        FP8=k_pages.dtype == fp8.DTYPE,
        K_SCALES=scale_layout(k_scale),
        V_SCALES=0 if v_scale is None else scale_layout(v_scale),
        HAS_VALUE=value is not None,
        LAST_LAYER=last_layer,
    )
    if accepted is not None:
        blocks = triton.cdiv(tokens, TOKENS_AT_ONCE)
        raise_fill[(blocks,)](accepted, positions, page_places, tokens, PAGE=page_size, BLOCK=TOKENS_AT_ONCE)


def _case(name: str, *, heads: int, dim: int, stored: str, scales: int, value: bool, last_layer: bool) -> AotCase:
    signature = {"key": "*bf16", "k_pages": stored, "k_scale": "*fp32", "block_table": "*i32"}
    signature |= dict.fromkeys(("token_rows", "positions"), "*i64") | dict.fromkeys(
        ("rows", "table_width", "num_pages"), "i32"
    )
    signature |= dict.fromkeys(("nonces", "page_tags", "page_writers", "page_places", "verdict"), "*i32")
    constants: dict[str, object] = {
        "HEADS": heads,
        "DIM": dim,
        "BLOCK_H": min(HEADS_AT_ONCE, power_of_two(heads)),
        "BLOCK_D": power_of_two(dim),
        "PAGE": 64,
        "FP8": stored == "*u8",
        "K_SCALES": scales,
        "V_SCALES": scales,
        "HAS_VALUE": value,
        "LAST_LAYER": last_layer,
    }
    of_value = {"value": "*bf16", "v_pages": stored, "v_scale": "*fp32"}
    signature |= of_value if value else {}
    constants |= {} if value else dict.fromkeys(of_value)
    signature |= {"accepted": "*i32"} if last_layer else {}
    constants |= {} if last_layer else {"accepted": None}
    return AotCase(name, store_rows, signature, constants, max_registers=80)


AOT_CASES: tuple[AotCase, ...] = (
    _case("kv_write/fp8/token", heads=8, dim=128, stored="*u8", scales=PER_TOKEN, value=True, last_layer=True),
    _case("kv_write/bf16", heads=8, dim=128, stored="*bf16", scales=PER_HEAD, value=True, last_layer=False),
    _case("mla_write/fp8/token", heads=1, dim=576, stored="*u8", scales=PER_TOKEN, value=False, last_layer=False),
    AotCase(
        "kv_write/raise_fill",
        raise_fill,
        {"accepted": "*i32", "positions": "*i64", "page_places": "*i32", "tokens": "i32"},
        {"PAGE": 64, "BLOCK": TOKENS_AT_ONCE},
        max_registers=40,
    ),
)
