# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Sampling in Triton: one program per row reads the logits block by block, as often as its request needs.

Nothing is sorted. Top-k and top-p are cuts in the order "larger logit first, then lower id", so each is a logit and a
number of tokens kept of those that have exactly that logit. The logit is found by bisection over float32 numbers as
ordered 32-bit integers: 32 readings, each of which counts tokens (or adds probabilities) above a candidate. Rows that
cut nothing read their logits twice, greedy rows once.

The noise is the reference's hash. Its logarithm is taken in float32 here, in float64 there; probabilities are added in
another order. So a draw differs from the reference's only where two candidates' scores (logit / temperature + noise)
are within 1e-5 of each other, or the mass above a token is within 1e-5 of top_p.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.sampling import GREEDY_BELOW, LogitAdjustments, SamplingParameters
from octavo_kernels.triton.aot_case import AotCase
from octavo_kernels.triton.architecture import on_device_of_tensors
from octavo_kernels.triton.binding import mix

BLOCK = 4096
"""Logits of one reading step: many, because every step waits for memory once."""

WARPS = 16

_LARGEST = tl.constexpr(3.4028234663852886e38)
_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_LOWEST_ORDER = tl.constexpr(-(1 << 31))
"""Below the order of every number."""
_MANY = tl.constexpr((1 << 31) - 1)


@triton.jit
def numbers(logits):
    """NaN as minus infinity and infinity as the largest number."""
    return tl.where(logits == logits, tl.minimum(logits, _LARGEST), -float("inf"))


@triton.jit
def order_of(values):
    """int32 in the order of float32 values, -0 just below 0 lifted to it; its own inverse is `value_of`."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def read(row, start, vocabulary, temperature, BLOCK: tl.constexpr):
    """(values, ids): a block of a row, divided by the temperature; minus infinity outside the vocabulary."""
    token = start + tl.arange(0, BLOCK)
    logit = tl.load(row + token, mask=token < vocabulary, other=-float("inf"))
    return numbers(tl.div_rn(logit, tl.broadcast_to(temperature, [BLOCK]))), token


@triton.jit
def value_of(order):
    """The float32 value of an order."""
    return tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)


@triton.jit
def above(row, vocabulary, temperature, largest, limit, BLOCK: tl.constexpr):
    """(how many values are above `limit` in order, their sum of exp(value - largest), how many are equal to it)."""
    count = tl.zeros([BLOCK], tl.int32)
    mass = tl.zeros([BLOCK], tl.float32)
    equal = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        value, token = read(row, start, vocabulary, temperature, BLOCK)
        order = order_of(value)
        counted = (order > limit) & (token < vocabulary)
        count += counted.to(tl.int32)
        mass += tl.where(counted, tl.exp(value - largest), 0.0)
        equal += ((order == limit) & (token < vocabulary)).to(tl.int32)
    return tl.sum(count, 0), tl.sum(mass, 0), tl.sum(equal, 0)


@triton.jit
def gumbel(seed, position, token):
    """-log(-log(u)) of u = (32 bits of the hash + 0.5) / 2**32, in float32."""
    word = mix(seed, position, token, token * 0) & 0xFFFFFFFF
    # 1 - u is exact where it is small, and there a series of -log(1 - w) instead of a logarithm near 1.
    u = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    w = ((0xFFFFFFFF - word).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = w * (1.0 + w * (0.5 + w * (1.0 / 3 + w * (0.25 + w * (0.2 + w * (1.0 / 6))))))
    return -tl.log(tl.where(w < 0.0625, series, -tl.log(tl.where(w < 0.0625, 0.5, u))))


@triton.jit
def sample_rows(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    out,
    vocabulary,
    HAS_MIN_P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    row = logits + at * vocabulary
    given = tl.load(temperatures + at)
    greedy = given < _GREEDY_BELOW
    temperature = tl.where(greedy, 1.0, given)
    largest = tl.full([], -float("inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        value, _ = read(row, start, vocabulary, temperature, BLOCK)
        largest = tl.maximum(largest, tl.max(value, 0))
    top_k = tl.load(top_ks + at)
    top_p = tl.load(top_ps + at)
    # The cut: orders above `limit` stay, and of those equal to it the first `equal`, up to `top_p` of the mass.
    limit = tl.full([], _LOWEST_ORDER, tl.int32)
    equal = tl.full([], _MANY, tl.int32)
    before = tl.full([], 0.0, tl.float32)
    needed = tl.full([], float("inf"), tl.float32)
    # First top-k, then top-p over what it left: the limit is the lowest order with less than `target` above it.
    for stage in range(2):
        wanted = ((stage == 0) & (top_k > 0) & (top_k < vocabulary)) | ((stage == 1) & (top_p < 1.0))
        if wanted & (given >= _GREEDY_BELOW) & (largest > -float("inf")):
            low = limit.to(tl.int64) - 1
            high = order_of(largest).to(tl.int64)
            target = tl.full([], 0.0, tl.float32)
            count = tl.full([], 0, tl.int32)
            mass = tl.full([], 0.0, tl.float32)
            # Turn 0 asks for the whole mass, 1 halves, as often as it takes, and 2 asks at what was found: one loop,
            # because every copy of its body takes seconds to compile.
            turn = tl.full([], 0, tl.int32)
            while turn < 3:
                middle = tl.where(turn == 0, low + 1, tl.where(turn == 1, (low + high) >> 1, high))
                count, mass, ties = above(row, vocabulary, temperature, largest, middle.to(tl.int32), BLOCK)
                share = tl.where(ties > 0, tl.exp(value_of(limit) - largest), 0.0)
                total = mass + share * tl.minimum(ties, equal).to(tl.float32)
                wanted_mass = tl.where(stage == 0, top_k.to(tl.float32), top_p * total)
                target = tl.where(turn == 0, wanted_mass, target)
                enough = tl.where(stage == 0, count.to(tl.float32), mass) < target
                high = tl.where((turn == 1) & enough, middle, high)
                low = tl.where((turn == 1) & (enough == 0), middle, low)
                turn = tl.where(turn == 2, 3, tl.where(high - low > 1, 1, 2))
            found = high.to(tl.int32)
            ties_of_p = tl.where(found > limit, _MANY, equal)
            equal = tl.where(stage == 0, top_k.to(tl.int32) - count, ties_of_p)
            before = tl.where(stage == 0, before, mass)
            needed = tl.where(stage == 0, needed, target)
            limit = found
    floor = tl.log(tl.load(min_ps + at)) if HAS_MIN_P else tl.full([], -float("inf"), tl.float32)
    seed = tl.load(seeds + at)
    position = tl.load(positions + at)
    best = tl.full([], -float("inf"), tl.float32)
    chosen = tl.full([], 0, tl.int32)
    seen = tl.full([], 0, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        value, token = read(row, start, vocabulary, temperature, BLOCK)
        order = order_of(value)
        tie = ((order == limit) & (token < vocabulary)).to(tl.int32)
        rank = seen + tl.cumsum(tie, 0) - tie
        # Of equal ones, those before which less than top_p lies; the very first stays whatever its share.
        mass = before + rank.to(tl.float32) * tl.exp(value - largest)
        first = (rank == 0) & (value == largest)
        kept = (order > limit) | ((tie > 0) & (rank < equal) & ((mass < needed) | first))
        kept = kept & (value - largest >= floor)
        score = tl.where(greedy, value, value + gumbel(seed, position, token))
        score = tl.where((kept | greedy) & (token < vocabulary), score, -float("inf"))
        here = tl.max(score, 0)
        if here > best:
            best = here
            chosen = tl.min(tl.where(score == here, token, vocabulary), 0)
        seen += tl.sum(tie, 0)
    tl.store(out + at, chosen.to(tl.int64))


@triton.jit(do_not_specialize=["entries", "row_count"])
def adjust_entries(
    logits, rows, tokens, biases, counts, in_prompt, repetitions, presences, frequencies, entries, vocabulary,
    row_count, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < entries
    row = tl.load(rows + entry, mask=inside, other=-1)
    token = tl.load(tokens + entry, mask=inside, other=-1)
    inside = inside & (row >= 0) & (row < row_count) & (token >= 0) & (token < vocabulary)
    row = tl.where(inside, row, 0)
    place = logits + row * vocabulary + tl.where(inside, token, 0)
    value = tl.load(place, mask=inside, other=0.0)
    count = tl.load(counts + entry, mask=inside, other=0)
    met = (count > 0) | (tl.load(in_prompt + entry, mask=inside, other=0) != 0)
    repetition = tl.where(met, tl.load(repetitions + row), 1.0)
    value = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
    value = value - count.to(tl.float32) * tl.load(frequencies + row)
    value = value - tl.where(count > 0, tl.load(presences + row), 0.0)
    tl.store(place, value + tl.load(biases + entry, mask=inside, other=0.0), mask=inside)


ENTRIES = 256
"""Adjustments of one program."""


@on_device_of_tensors
def sample(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """Draw one token per row: logits [S, V] float32, result [S] int64; see `reference/sampling.py`.

    Adjustments of rows or tokens that do not exist are left out: refusing them would wait for the device.
    """
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    require_contiguous(logits=logits)
    rows, vocabulary = logits.shape
    if not 1 <= vocabulary < 1 << 24:
        raise KernelInputError(f"logits has a vocabulary of {vocabulary}, needed 1 to {(1 << 24) - 1}")
    _check(parameters, rows)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return out
    if parameters.adjustments is not None:
        logits = adjust(logits, parameters.adjustments)
    sample_rows[(rows,)](
        logits,
        parameters.temperature,
        parameters.top_k,
        parameters.top_p,
        parameters.temperature if parameters.min_p is None else parameters.min_p,
        parameters.seed,
        parameters.position,
        out,
        vocabulary,
        HAS_MIN_P=parameters.min_p is not None,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return out


def adjust(logits: torch.Tensor, adjustments: LogitAdjustments) -> torch.Tensor:
    """Logits [S, V] with the penalties and biases of `LogitAdjustments`; a new tensor."""
    rows, vocabulary = logits.shape
    entries = adjustments.rows.shape[0]
    for name, dtype in (
        ("tokens", torch.int64),
        ("bias", torch.float32),
        ("count", torch.int32),
        ("in_prompt", torch.bool),
    ):
        require_shape(f"adjustments.{name}", getattr(adjustments, name), entries)
        require_dtype(f"adjustments.{name}", getattr(adjustments, name), dtype)
    for name in ("repetition", "presence", "frequency"):
        require_shape(f"adjustments.{name}", getattr(adjustments, name), rows)
        require_dtype(f"adjustments.{name}", getattr(adjustments, name), torch.float32)
    require_contiguous(**vars(adjustments))
    out = logits.clone()
    if entries:
        adjust_entries[(triton.cdiv(entries, ENTRIES),)](
            out, adjustments.rows, adjustments.tokens, adjustments.bias, adjustments.count,
            adjustments.in_prompt.view(torch.uint8), adjustments.repetition, adjustments.presence,
            adjustments.frequency, entries, vocabulary, rows, BLOCK=ENTRIES,
        )  # fmt: skip
    return out


def _check(parameters: SamplingParameters, rows: int) -> None:
    _require("temperature", parameters.temperature, torch.float32, rows)
    _require("top_k", parameters.top_k, torch.int64, rows)
    _require("top_p", parameters.top_p, torch.float32, rows)
    _require("seed", parameters.seed, torch.int64, rows)
    _require("position", parameters.position, torch.int64, rows)
    if parameters.min_p is not None:
        _require("min_p", parameters.min_p, torch.float32, rows)


def _require(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: int) -> None:
    require_dtype(name, tensor, dtype)
    require_shape(name, tensor, size)
    require_contiguous(**{name: tensor})


AOT_CASES: tuple[AotCase, ...] = (
    AotCase(
        name="sampling/sample",
        kernel=sample_rows,
        signature={
            "logits": "*fp32",
            "temperatures": "*fp32",
            "top_ks": "*i64",
            "top_ps": "*fp32",
            "min_ps": "*fp32",
            "seeds": "*i64",
            "positions": "*i64",
            "out": "*i64",
            "vocabulary": "i32",
        },
        constants={"HAS_MIN_P": True, "BLOCK": BLOCK},
        num_warps=WARPS,
        max_registers=128,
    ),
    AotCase(
        name="sampling/adjust",
        kernel=adjust_entries,
        signature={
            "logits": "*fp32",
            "rows": "*i64",
            "tokens": "*i64",
            "biases": "*fp32",
            "counts": "*i32",
            "in_prompt": "*u8",
            "repetitions": "*fp32",
            "presences": "*fp32",
            "frequencies": "*fp32",
            "entries": "i32",
            "vocabulary": "i32",
            "row_count": "i32",
        },
        constants={"BLOCK": ENTRIES},
        max_registers=96,
        unaligned=frozenset({"entries", "row_count"}),
    ),
)
