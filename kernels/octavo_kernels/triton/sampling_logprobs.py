# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Log-probabilities in Triton: of drawn tokens and of the most likely ones, one program per row.

The n most likely tokens are found one after the other, each as the first behind the last one in the order "larger
logit first, then lower id": n readings of the row, which stays in the L2 cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.errors import require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.sampling import Logprobs
from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors
from octavo_kernels.triton.sampling import BLOCK, WARPS, numbers


@triton.jit(do_not_specialize=["top"])
def logprob_rows(logits, tokens, chosen, top_ids, top_values, vocabulary, top, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)
    row = logits + at * vocabulary
    place = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        logit = tl.load(row + start + place, mask=start + place < vocabulary, other=-float("inf"))
        largest = tl.maximum(largest, tl.where(logit == logit, logit, -float("inf")))
    peak = tl.max(largest, 0)
    # A NaN, or an infinity less itself, makes the sum and with it the whole row NaN.
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        inside = start + place < vocabulary
        logit = tl.load(row + start + place, mask=inside, other=0.0)
        total += tl.where(inside, tl.exp(logit - peak), 0.0)
    shift = tl.log(tl.sum(total, 0))
    token = tl.load(tokens + at)
    known = (token >= 0) & (token < vocabulary)
    own = tl.load(row + tl.where(known, token, 0))
    tl.store(chosen + at, tl.where(known, own - peak - shift, float("nan")))
    last = tl.full([], float("inf"), tl.float32)
    last_id = tl.full([], -1, tl.int32)
    for rank in range(top):
        best = tl.full([], -float("inf"), tl.float32)
        # A vocabulary of 1 is a constant to the compiler, which no loop may change.
        best_id = tl.full([], 0, tl.int32) + vocabulary
        for start in range(0, vocabulary, BLOCK):
            inside = start + place < vocabulary
            value = numbers(tl.load(row + start + place, mask=inside, other=-float("inf")))
            behind = inside & ((value < last) | ((value == last) & (start + place > last_id)))
            here = tl.max(tl.where(behind, value, -float("inf")), 0)
            here_id = tl.min(tl.where(behind & (value == here), start + place, vocabulary), 0)
            better = (here > best) | ((here == best) & (here_id < best_id))
            best_id = tl.where(better, here_id, best_id)
            best = tl.where(better, here, best)
        tl.store(top_ids + at * top + rank, best_id.to(tl.int64))
        tl.store(top_values + at * top + rank, tl.load(row + best_id) - peak - shift)
        last = best
        last_id = best_id


@on_device_of_tensors
def logprobs(logits: torch.Tensor, tokens: torch.Tensor, top: int) -> Logprobs:
    """Log-probabilities of drawn tokens and of the `top` most likely ones: logits [S, V] float32, tokens [S] int64.

    Equally likely tokens rank by rising id. A row with a NaN has NaN everywhere. A token outside the vocabulary has NaN
    as well: refusing it would wait for the device.
    """
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    require_dtype("tokens", tokens, torch.int64)
    require_shape("tokens", tokens, logits.shape[0])
    require_contiguous(logits=logits, tokens=tokens)
    rows, vocabulary = logits.shape
    top = min(top, vocabulary)
    chosen = logits.new_empty(rows)
    ids = torch.empty((rows, top), dtype=torch.int64, device=logits.device)
    values = logits.new_empty((rows, top))
    if rows:
        logprob_rows[(rows,)](logits, tokens, chosen, ids, values, vocabulary, top, BLOCK=BLOCK, num_warps=WARPS)
    return Logprobs(chosen=chosen, top_ids=ids, top=values)


AOT_CASES: tuple[AotCase, ...] = (
    AotCase(
        name="sampling/logprobs",
        kernel=logprob_rows,
        signature={
            "logits": "*fp32",
            "tokens": "*i64",
            "chosen": "*fp32",
            "top_ids": "*i64",
            "top_values": "*fp32",
            "vocabulary": "i32",
            "top": "i32",
        },
        constants={"BLOCK": BLOCK},
        num_warps=WARPS,
        max_registers=128,
        unaligned=frozenset({"top"}),
    ),
)
