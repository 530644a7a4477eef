"""Kernels on this machine's CUDA device at decode shapes of large models: time, and share of the memory bandwidth.

`python -m benchmarks.gpu_kernels [--quick] [--json]`, also the second half of `python -m tests.gpu`. Arms take turns
within one process, the last-level cache is overwritten before each call, each call is a captured graph between two
events, figures are medians. The bandwidth that shares refer to is a copy's, measured as one more arm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from octavo_kernels.formats.experts import Bf16Experts, CanonicalExperts, Fp8BlockExperts, Int4Experts
from octavo_kernels.formats.fp8_block import Fp8BlockWeight
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.triton.experts import TritonExperts
from octavo_kernels.triton.mla_attention import mla_attention
from octavo_kernels.triton.paged_attention import paged_attention

ROUNDS, QUICK_ROUNDS = 15, 5
BUDGET_SECONDS = 130
"""Arms past this are left out, and said to be."""
PAGE = 64
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Sizes:
    """What is multiplied and read; the quick ones are for a look, and for a rehearsal without a GPU."""

    contexts: tuple[tuple[int, int], ...]
    """(batch, tokens per request)."""
    expert_tokens: tuple[int, ...]
    experts: int
    hidden: int
    intermediate: int
    """On one of eight GPUs."""
    copy_bytes: int
    cache_bytes: int
    """Written between calls; more than any last-level cache."""


FULL = Sizes(((1, 21440), (32, 21440), (64, 21440)), (1, 8, 32, 64), 384, 7168, 256, 1 << 30, 256 << 20)
QUICK = Sizes(((2, 128),), (2,), 4, 128, 128, 1 << 20, 1 << 20)


@dataclass(frozen=True)
class Arm:
    """One thing to time, and the bytes that it cannot do without."""

    name: str
    call: Callable[[], object]
    bytes: int


@dataclass(frozen=True)
class Family:
    """Arms that are compared with each other; their tensors live only while they are timed."""

    name: str
    arms: Callable[[], Iterator[Arm]]


class Clock:
    """Seconds that a call takes on the device; on a CPU, for rehearsal, by the wall."""

    def __init__(self, device: torch.device, cache_bytes: int) -> None:
        self._cuda = device.type == "cuda"
        self._flush = torch.zeros(cache_bytes, dtype=torch.uint8, device=device)

    def prepared(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call as a graph, so that the host's launches are not timed."""
        call()
        if not self._cuda:
            return call
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def time(self, call: Callable[[], object]) -> float:
        """One call, with nothing of its data in the cache."""
        self._flush.add_(1)
        if not self._cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def run(quick: bool) -> dict[str, object]:
    """{arm: {us, share_of_bandwidth}} and the bandwidth; a family of arms that fails is reported, not fatal."""
    sizes = QUICK if quick else FULL
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clock = Clock(device, sizes.cache_bytes)
    deadline = time.monotonic() + BUDGET_SECONDS
    rounds = QUICK_ROUNDS if quick else ROUNDS
    figures: dict[str, object] = {}
    left_out: list[str] = []
    bandwidth = 0.0
    with device:
        for family in _families(sizes):
            if time.monotonic() > deadline:
                left_out.append(family.name)
                continue
            for name, seconds, count in _medians(list(family.arms()), clock, rounds):
                if name == "copy":
                    bandwidth = count / seconds
                    figures["copy_gb_per_s"] = round(bandwidth / 1e9, 1)
                    continue
                share = count / seconds / bandwidth
                figures[name] = {"us": round(seconds * 1e6, 1), "share_of_bandwidth": round(share, 3)}
    return figures | ({"left_out": left_out} if left_out else {})


def sheet(figures: dict[str, object]) -> str:
    """For people."""
    lines = [f"copy: {figures.get('copy_gb_per_s')} GB/s"]
    for name, figure in figures.items():
        if isinstance(figure, dict):
            lines.append(
                f"{name:44} {figure['us']:>10} us {100 * figure['share_of_bandwidth']:6.1f} % of a copy's rate"
            )
    if "left_out" in figures:
        lines.append(f"left out for time: {figures['left_out']}")
    return "\n".join(lines)


def _medians(arms: list[Arm], clock: Clock, rounds: int) -> Iterator[tuple[str, float, int]]:
    calls = [clock.prepared(arm.call) for arm in arms]
    taken: list[list[float]] = [[] for _ in arms]
    for _ in range(rounds):
        for call, times in zip(calls, taken, strict=True):
            times.append(clock.time(call))
    for arm, times in zip(arms, taken, strict=True):
        yield arm.name, statistics.median(times), arm.bytes


def _families(sizes: Sizes) -> Iterator[Family]:
    yield Family("copy", partial(_copy, sizes.copy_bytes))
    for batch, context in sizes.contexts:
        yield Family(f"latent attention, batch {batch}", partial(_latent, batch, context))
        yield Family(f"paged attention, batch {batch}", partial(_gqa, batch, context))
    for tokens in sizes.expert_tokens:
        yield Family(f"experts, {tokens} tokens", partial(_experts, sizes, tokens))


def _copy(count: int) -> Iterator[Arm]:
    source = torch.zeros(count, dtype=torch.uint8)
    target = torch.empty_like(source)
    yield Arm("copy", partial(target.copy_, source), 2 * count)


def _tables(batch: int, context: int) -> dict[str, torch.Tensor]:
    pages = -(-context // PAGE)
    ids = torch.randperm(batch * pages, device="cpu").to(torch.get_default_device()).view(batch, pages) + 1
    return {
        "block_table": torch.stack((ids, torch.full_like(ids, 2)), dim=-1).to(torch.int32),
        "query_start": torch.arange(batch + 1, dtype=torch.int32),
        "context_lens": torch.full((batch,), context, dtype=torch.int32),
        "positions": torch.full((batch,), context - 1, dtype=torch.int64),
    }


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Finite numbers of any dtype; one leading slice is drawn and repeated, since drawing gigabytes takes long."""
    slab = torch.randn(shape[1:]).to(dtype).view(torch.uint8 if dtype.itemsize == 1 else dtype)
    return slab.expand(shape).contiguous().view(dtype)


def _latent(batch: int, context: int, heads: int = 8, latent: int = 512, rope: int = 64) -> Iterator[Arm]:
    tables = _tables(batch, context)
    query = torch.randn((batch, heads, latent + rope)).bfloat16()
    pages = int(tables["block_table"][..., 0].max()) + 1
    for name, dtype in (("fp8", FP8), ("bf16", torch.bfloat16)):
        cache = _random(pages, PAGE, latent + rope, dtype=dtype)

        def attend(cache: torch.Tensor = cache) -> torch.Tensor:
            scale = torch.ones(())
            return mla_attention(query, pages=cache, scale=scale, latent_dim=latent, softmax_scale=0.07, **tables)

        yield Arm(
            f"mla decode {name} b{batch} ctx{context}", attend, batch * context * (latent + rope) * dtype.itemsize
        )


def _gqa(batch: int, context: int, kv_heads: int = 4, group: int = 8, dim: int = 128) -> Iterator[Arm]:
    tables = _tables(batch, context)
    query = torch.randn((batch, kv_heads * group, dim)).bfloat16()
    pages = int(tables["block_table"][..., 0].max()) + 1
    for name, dtype in (("fp8", FP8), ("bf16", torch.bfloat16)):
        k_pages, v_pages = (_random(pages, PAGE, kv_heads, dim, dtype=dtype) for _ in range(2))

        def attend(k_pages: torch.Tensor = k_pages, v_pages: torch.Tensor = v_pages) -> torch.Tensor:
            one = torch.ones(())
            scales = {"k_scale": one, "v_scale": one}
            return paged_attention(query, k_pages=k_pages, v_pages=v_pages, softmax_scale=0.09, **scales, **tables)

        read = 2 * batch * context * kv_heads * dim * dtype.itemsize
        yield Arm(f"gqa decode {name} b{batch} ctx{context}", attend, read)
    keys, values = (_random(batch, kv_heads, context, dim, dtype=torch.bfloat16) for _ in range(2))
    asked = query.view(batch, kv_heads * group, 1, dim)
    yield Arm(
        f"gqa decode torch sdpa bf16 b{batch} ctx{context}",
        lambda: torch.nn.functional.scaled_dot_product_attention(asked, keys, values, enable_gqa=True),
        2 * batch * context * kv_heads * dim * 2,
    )


def _experts(sizes: Sizes, tokens: int, top_k: int = 8) -> Iterator[Arm]:
    kernel = TritonExperts()
    top_k = min(top_k, sizes.experts)
    x = torch.randn((tokens, sizes.hidden)).bfloat16()
    ids = torch.rand((tokens, sizes.experts)).argsort(dim=1)[:, :top_k].contiguous()
    weights = torch.rand((tokens, top_k))
    share = len(set(ids.flatten().tolist())) / sizes.experts
    for name, stack in _stacks(sizes):
        prepared = kernel.prepare(stack)
        read = int(share * prepared.nbytes)
        yield Arm(
            f"experts {name} t{tokens}",
            partial(kernel.apply, x, prepared, ids, weights),
            read,
        )


def _stacks(sizes: Sizes) -> Iterator[tuple[str, CanonicalExperts]]:
    experts, hidden, inner = sizes.experts, sizes.hidden, sizes.intermediate
    shapes = ((experts, 2 * inner, hidden), (experts, hidden, inner))
    yield "int4 g32", Int4Experts(*(_int4(*shape, group=32) for shape in shapes))
    yield "fp8 128x128", Fp8BlockExperts(*(_fp8(*shape) for shape in shapes))
    yield "bf16", Bf16Experts(*(_random(*shape, dtype=torch.bfloat16) for shape in shapes))


def _int4(experts: int, n: int, k: int, group: int) -> Int4Weight:
    packed = torch.randint(0, 256, (experts, n, k // 2), dtype=torch.uint8)
    return Int4Weight(packed, torch.full((experts, n, k // group), 0.01, dtype=torch.bfloat16), group)


def _fp8(experts: int, n: int, k: int) -> Fp8BlockWeight:
    blocks = (experts, -(-n // 128), -(-k // 128))
    return Fp8BlockWeight(_random(experts, n, k, dtype=FP8), torch.full(blocks, 0.01))


def main() -> int:
    """Run and print; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_kernels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small shapes")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    args = parser.parse_args()
    if not torch.cuda.is_available() and not args.quick:
        print("benchmarks.gpu_kernels: torch sees no CUDA device; nothing was measured", file=sys.stderr)
        return 1
    figures = run(args.quick)
    if not args.json:
        print(sheet(figures))
    machine = "no CUDA device: a rehearsal, not a measurement"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        machine = f"compute capability {major}.{minor}, torch {torch.__version__}"
    print(json.dumps({"name": "gpu_kernels", "machine": machine, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
