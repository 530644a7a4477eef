"""Tokens that the KV pool holds in the same bytes: BF16 against FP8, filled to refusal, every byte counted.

Each format runs in a process of its own, because a peak of resident memory never falls again. The process allocates
the real cache for the budget, touches it, and lets requests take pages until the pool refuses.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from octavo_runtime.contract.facts import AttentionFacts, AttentionKind, CheckpointFormat, ModelFacts, ParameterFacts
from octavo_runtime.contract.footprint import DEFAULT_PAGE_SIZE
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.capacity import kv_capacity
from octavo_runtime.kv.pool import Holding, Nonces, OutOfPages, PagePool

MIB = 1 << 20
BUDGET_BYTES, QUICK_BUDGET_BYTES = 1024 * MIB, 128 * MIB
REQUEST_TOKENS = 1000
"""Tokens of one request: the last of its pages is filled in part, as in life."""
TIMEOUT_SECONDS = 300

QWEN3_30B = ModelFacts(
    architecture="Qwen3MoeForCausalLM",
    revision="shape only",
    layers=48,
    hidden_size=2048,
    vocab_size=151936,
    max_position_embeddings=262144,
    attention=AttentionFacts(kind=AttentionKind.GQA, heads=32, kv_heads=4, head_dim=128),
    format=CheckpointFormat.BF16,
    parameters=ParameterFacts(routed_experts=0, embeddings=0, other=0),
    checkpoint_bytes=0,
)
"""Shape of Qwen3-30B-A3B's attention: 98,304 bytes of BF16 KV per token."""


@dataclass(frozen=True)
class Filled:
    """One format's pool at the moment of refusal."""

    tokens: int
    """Tokens in pages that requests hold."""
    storage_bytes: int
    """Bytes of all tensors of the pool, integrity records included."""
    resident_bytes: int
    """How much the process's peak of resident memory grew by the pool."""
    page_size: int

    @property
    def bytes_per_token(self) -> float:
        """Storage bytes of held pages for each token, records included; the one NULL page is left out, since its share
        depends on the pool's size and not on the format."""
        pages = self.tokens // self.page_size
        return self.storage_bytes * pages / (pages + 1) / self.tokens


def fill(facts: ModelFacts, kv: KvFormat, budget_bytes: int, page_size: int = DEFAULT_PAGE_SIZE) -> Filled:
    """Allocate the pool for `budget_bytes` in this process and fill it until it refuses."""
    layout = ParallelLayout.of(facts, 1)
    capacity = kv_capacity(facts, kv, layout, budget_bytes, page_size)
    before = peak_resident_bytes()
    cache = KvCache.allocate(facts, layout, kv, capacity.num_pages, page_size, torch.device("cpu"))
    cache.commit()
    grown = peak_resident_bytes() - before
    pool, nonces, tokens = PagePool(capacity.num_pages, page_size), Nonces(seed=1), 0
    holdings: list[Holding] = []
    while pool.free_pages:
        holding = Holding(nonces.take())
        wanted = min(REQUEST_TOKENS, pool.free_pages * page_size)
        pool.extend(holding, wanted)
        holdings.append(holding)
        tokens += len(holding.pages) * page_size
    refused(pool)
    pool.check_integrity(holdings)
    return Filled(tokens, cache.storage_bytes, grown, page_size)


def refused(pool: PagePool) -> None:
    """Make sure that the pool does refuse one token more."""
    try:
        pool.extend(Holding(nonce=1), 1)
    except OutOfPages:
        return
    raise AssertionError("the pool took one token more")


def peak_resident_bytes() -> int:
    """VmHWM of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def run(*, quick: bool) -> dict[str, object]:
    """Figures of both formats and their ratio."""
    budget = QUICK_BUDGET_BYTES if quick else BUDGET_BYTES
    filled = {kv: _in_a_process_of_its_own(kv, budget) for kv in KvFormat}
    bf16, fp8 = filled[KvFormat.BF16], filled[KvFormat.FP8]
    figures: dict[str, object] = {"budget_bytes": budget, "page_size": DEFAULT_PAGE_SIZE}
    for kv, one in filled.items():
        figures |= {f"{name}_{kv.lower()}": value for name, value in asdict(one).items() if name != "page_size"}
        figures[f"bytes_per_token_{kv.lower()}"] = round(one.bytes_per_token, 1)
    figures["capacity_ratio_gqa"] = round(bf16.bytes_per_token / fp8.bytes_per_token, 4)
    figures["tokens_ratio_same_budget"] = round(fp8.tokens / bf16.tokens, 4)
    return figures


def sheet(figures: dict[str, object]) -> str:
    """The figures for people."""
    rows = [f"KV pool of {figures['budget_bytes']} bytes, Qwen3-30B-A3B's shape, filled to refusal:", ""]
    rows.append(f"{'':6}{'tokens':>10}{'storage bytes':>16}{'peak resident grew by':>24}{'bytes/token':>14}")
    for kv in KvFormat:
        name = kv.lower()
        rows.append(
            f"{kv:6}{figures[f'tokens_{name}']:>10}{figures[f'storage_bytes_{name}']:>16}"
            f"{figures[f'resident_bytes_{name}']:>24}{figures[f'bytes_per_token_{name}']:>14}"
        )
    rows.append(f"\nPer byte of held pages FP8 holds {figures['capacity_ratio_gqa']} times the tokens of BF16.")
    return "\n".join(rows)


def _in_a_process_of_its_own(kv: KvFormat, budget_bytes: int) -> Filled:
    command = [sys.executable, "-m", "benchmarks.capacity", kv.value, str(budget_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return Filled(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(fill(QWEN3_30B, KvFormat(sys.argv[1]), int(sys.argv[2])))))
