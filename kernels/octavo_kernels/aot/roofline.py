"""Bytes, FLOPs and the bound of each kernel at the decode shapes of large models, and the occupancy it can have.

    python -m octavo_kernels.aot.roofline [--aot aot.json] [--into docs/kernels.md]

The bounds are arithmetic on published figures; occupancy needs the JSON of `python -m octavo_kernels.aot --json FILE`.
Nothing here was measured on a GPU: a bound is what a kernel cannot beat, not what it does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_kernels.aot.occupancy import occupancy
from octavo_kernels.aot.results import Measured
from octavo_kernels.aot.shapes import GPUS as TENSOR_PARALLEL
from octavo_kernels.aot.shapes import MODELS, Model

BATCHES = (1, 32, 64)
CONTEXT = 21_440
"""Tokens per request: 686,000 tokens of a BF16 cache shared by 32 requests."""
PAGE = 64


@dataclass(frozen=True)
class Gpu:
    """Peak rates of one device, without sparsity.

    Sources: NVIDIA, "H200 Tensor Core GPU" datasheet; NVIDIA, "DGX B200" and "Blackwell Architecture" datasheets.
    """

    name: str
    architecture: int
    multiprocessors: int
    bytes_per_second: float
    bf16: float
    """FLOP/s of bfloat16 products with float32 sums."""
    fp8: float
    fp4: float
    """0 where tensor cores do not multiply e2m1."""


H200 = Gpu("H200", 90, 132, 4.8e12, 989e12, 1979e12, 0.0)
B200 = Gpu("B200", 100, 148, 8.0e12, 2.25e15, 4.5e15, 9.0e15)
GPUS = (H200, B200)


@dataclass(frozen=True)
class Work:
    """What one launch has to move and multiply, on one GPU, at least."""

    kernel: str
    bytes: float
    flops: float
    arithmetic: str
    """bf16, fp8 or fp4: what the tensor cores multiply."""

    def seconds(self, gpu: Gpu) -> tuple[float, str]:
        """The bound, and by what: memory, or the tensor cores at the format that they can multiply there."""
        rate = {"bf16": gpu.bf16, "fp8": gpu.fp8, "fp4": gpu.fp4 or gpu.bf16}[self.arithmetic]
        memory, compute = self.bytes / gpu.bytes_per_second, self.flops / rate
        return (memory, "memory") if memory >= compute else (compute, "compute")


def experts_hit(model: Model, batch: int) -> float:
    """Distinct experts of `batch` tokens, if routing were uniform and independent: E (1 - (1 - k/E)^T)."""
    return model.experts * (1 - (1 - model.top_k / model.experts) ** batch)


def attention(model: Model, batch: int, name: str, bytes_per_value: int, tokens: int = CONTEXT) -> Work:
    """Absorbed MLA decode: every local head reads the same latent rows, which are both keys and values."""
    row = model.latent + model.rope
    read = batch * tokens * row * bytes_per_value
    table = batch * -(-CONTEXT // PAGE) * 8
    queries = batch * model.local_heads * (row + model.latent) * 4
    flops = 2.0 * batch * tokens * model.local_heads * (row + model.latent)
    return Work(f"latent attention, {name}", read + table + queries, flops, "bf16")


def experts(model: Model, batch: int, name: str, bits: float, arithmetic: str) -> Work:
    """Gate, up and down of the routed experts' local slices; `bits` per weight, scales included."""
    per_expert = 3 * model.hidden * model.local_intermediate
    slots = batch * model.top_k
    # Activations in and out once per slot, the float32 parts of the sum twice.
    moved = slots * (2 * model.hidden + 2 * 2 * model.local_intermediate + 2 * 4 * model.hidden)
    read = experts_hit(model, batch) * per_expert * bits / 8
    return Work(f"experts, {name}", read + moved, 2.0 * slots * per_expert, arithmetic)


def linears(model: Model, batch: int, name: str, bits: float, arithmetic: str) -> Work:
    """The attention's projections and the shared expert: what a layer multiplies besides experts."""
    heads = model.local_heads
    weights = (
        model.hidden * (model.q_rank + model.latent + model.rope)
        + model.q_rank * heads * (model.nope + model.rope)
        + heads * model.latent * (model.nope + model.value)
        + heads * model.value * model.hidden
        + 3 * model.hidden * model.local_intermediate * model.shared_experts
    )
    moved = batch * 4 * 2 * (model.hidden + model.q_rank + heads * (model.latent + model.value))
    return Work(f"linears, {name}", weights * bits / 8 + moved, 2.0 * batch * weights, arithmetic)


def row_work(model: Model, batch: int) -> Iterator[Work]:
    """The small kernels: bytes are what they touch, FLOPs are not worth counting."""
    row = model.latent + model.rope
    yield Work("KV write, FP8", batch * row * (4 + 1), 0.0, "bf16")
    pairs = batch * -(-CONTEXT // PAGE)
    yield Work("integrity check, per step", pairs * (8 + 3 * 4), 0.0, "bf16")
    yield Work("RMSNorm", batch * model.hidden * 2 * 4 + model.hidden * 2, 0.0, "bf16")
    yield Work("sampling, per step", batch * model.vocabulary * 4, 0.0, "bf16")


def works(model: Model, batch: int) -> Iterator[Work]:
    """Every kernel of a decode step, in the formats there are."""
    yield attention(model, batch, "BF16 cache", 2)
    yield attention(model, batch, "FP8 cache", 1)
    if model.index_top_k:
        yield attention(model, batch, f"FP8 cache, {model.index_top_k} sparse tokens (no kernel)", 1, model.index_top_k)
    yield experts(model, batch, "INT4 g32", 4.5, "bf16")
    yield experts(model, batch, "FP8 128x128", 8 + 32 / 16384, "fp8")
    yield experts(model, batch, "NVFP4", 4.5, "fp4")
    yield experts(model, batch, "BF16", 16, "bf16")
    yield linears(model, batch, "BF16", 16, "bf16")
    yield linears(model, batch, "FP8 128x128", 8 + 32 / 16384, "fp8")
    yield from row_work(model, batch)


def bounds_table(model: Model) -> str:
    """Markdown: a row per kernel and batch."""
    columns = ["kernel", "batch", "MB", "GFLOP", "FLOP/byte"]
    for gpu in GPUS:
        columns += [f"{gpu.name} us", "bound"]
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    by_batch = [list(works(model, batch)) for batch in BATCHES]
    for same in zip(*by_batch, strict=True):
        for batch, work in zip(BATCHES, same, strict=True):
            cells = [work.kernel, str(batch), _digits(work.bytes / 1e6), _digits(work.flops / 1e9)]
            cells.append(f"{work.flops / work.bytes:.1f}")
            for gpu in GPUS:
                seconds, bound = work.seconds(gpu)
                cells += [_digits(seconds * 1e6), bound]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def step_seconds(model: Model, batch: int, gpu: Gpu, *, kv: int, expert_bits: float) -> float:
    """The bound of a whole decode step: attention, experts and BF16 linears of all layers, one after the other.

    Left out: communication between GPUs, launches, the vocabulary's product, and that the first layers are dense.
    """
    layer = (
        attention(model, batch, "", kv),
        experts(model, batch, "", expert_bits, "bf16"),
        linears(model, batch, "", 16, "bf16"),
    )
    return model.layers * sum(work.seconds(gpu)[0] for work in layer)


def step_table() -> str:
    """Markdown: bounds of a decode step and the tokens per second of eight GPUs that follow from them."""
    formats = (
        ("BF16", 2, "FP8", 8.0),
        ("FP8", 1, "FP8", 8.0),
        ("BF16", 2, "INT4 g32", 4.5),
        ("FP8", 1, "INT4 g32", 4.5),
    )
    columns = ["model", "cache", "experts", "batch"]
    for gpu in GPUS:
        columns += [f"{gpu.name} ms", "tokens/s"]
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    for model in MODELS:
        for cache, kv, weights, bits in formats:
            for batch in BATCHES:
                cells = [model.name, cache, weights, str(batch)]
                for gpu in GPUS:
                    seconds = step_seconds(model, batch, gpu, kv=kv, expert_bits=bits)
                    cells += [f"{seconds * 1e3:.1f}", f"{batch / seconds:,.0f}"]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bounds() -> str:
    """Markdown: everything that follows from published figures alone."""
    parts = [
        f"#### {model.name}, one layer on one of {TENSOR_PARALLEL} GPUs\n\n{bounds_table(model)}" for model in MODELS
    ]
    return "\n\n".join([*parts, f"#### A whole step\n\n{step_table()}"])


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 or not value else f"{value:.4f}"


def occupancy_table(results: Sequence[dict[str, object]], architectures: Sequence[int]) -> str:
    """Markdown: a row per compiled case, from the JSON of the matrix, for the newest Triton in it."""
    compiled = [result for result in results if result["outcome"] == "compiled"]
    newest = max((str(result["triton"]) for result in compiled), default="")
    columns = ["kernel"]
    for architecture in architectures:
        columns += [f"sm_{architecture} registers", "KiB", "blocks", "warps", "bound by"]
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    cells = {
        (str(result["case"]), result["architecture"]): Measured.from_json(_document(result["measured"]))
        for result in compiled
        if result["triton"] == newest
    }
    for case in dict.fromkeys(name for name, _ in cells):
        row = [case]
        for architecture in architectures:
            measured = cells.get((case, architecture))
            row += _occupancy_cells(measured, architecture) if measured else ["-"] * 5
        if any(cell != "-" for cell in row[1:]):
            lines.append("| " + " | ".join(row) + " |")
    return f"Triton {newest}.\n\n" + "\n".join(lines)


def _document(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"a compiled result without measurements: {value!r}")
    return value


def _occupancy_cells(measured: Measured, architecture: int) -> list[str]:
    found = occupancy(measured, architecture)
    return [
        str(measured.registers),
        f"{measured.shared_bytes / 1024:.0f}",
        str(found.blocks),
        f"{found.warps}/{found.of_warps}",
        found.bound_by,
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m octavo_kernels.aot.roofline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--aot", type=Path, metavar="FILE", help="JSON of the matrix, for the occupancy")
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="replace the tables between the marks in this document"
    )
    args = parser.parse_args(argv)
    sections = {"bounds": bounds()}
    if args.aot:
        results = json.loads(args.aot.read_text())["results"]
        sections["occupancy"] = occupancy_table(results, [gpu.architecture for gpu in GPUS])
    if args.into is None:
        print("\n\n".join(sections.values()))
        return 0
    text = args.into.read_text()
    for name, section in sections.items():
        text = replaced(text, name, section)
    args.into.write_text(text)
    return 0


def replaced(document: str, name: str, section: str) -> str:
    """The document with `section` between `<!-- name -->` and `<!-- end name -->`; raises ValueError without them."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    if begin not in document or end not in document:
        raise ValueError(f"the document lacks {begin} or {end}")
    head, tail = document.split(begin)[0], document.split(end)[1]
    return f"{head}{begin}\n\n{section}\n\n{end}{tail}"


if __name__ == "__main__":
    sys.exit(main())
