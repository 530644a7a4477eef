"""Tokens that the KV pool holds in the same bytes: BF16 against FP8, filled to refusal, every byte counted.

Each arm runs in a process of its own, because a peak of resident memory never falls again. The process allocates the
real cache for the budget, touches it, and lets requests take pages until the pool refuses.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from octavo_runtime.contract.facts import AttentionFacts, AttentionKind, CheckpointFormat, ModelFacts, ParameterFacts
from octavo_runtime.contract.footprint import DEFAULT_PAGE_SIZE, PAGE_METADATA_BYTES, kv_bytes_per_token
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.capacity import kv_capacity
from octavo_runtime.kv.holding import Holding, Nonces
from octavo_runtime.kv.manager import KvManager, Match
from octavo_runtime.kv.pool import OutOfPages, PagePool

MIB = 1 << 20
BUDGET_BYTES, QUICK_BUDGET_BYTES = 1024 * MIB, 128 * MIB
REQUEST_TOKENS = 1000
"""Tokens of one request: the last of its pages is filled in part, as in life."""
TIMEOUT_SECONDS = 300


def _shape(architecture: str, layers: int, attention: AttentionFacts) -> ModelFacts:
    """A model of which only the cache is of interest."""
    return ModelFacts(
        architecture=architecture,
        revision="shape only",
        layers=layers,
        hidden_size=2048,
        vocab_size=151936,
        max_position_embeddings=262144,
        attention=attention,
        format=CheckpointFormat.BF16,
        parameters=ParameterFacts(routed_experts=0, embeddings=0, other=0),
        checkpoint_bytes=0,
    )


QWEN3_30B = _shape(
    "Qwen3MoeForCausalLM", 48, AttentionFacts(kind=AttentionKind.GQA, heads=32, kv_heads=4, head_dim=128)
)
"""Attention of Qwen3-30B-A3B: 98,304 bytes of BF16 KV per token."""
KIMI_K26 = _shape(
    "KimiK25ForConditionalGeneration",
    61,
    AttentionFacts(kind=AttentionKind.MLA, heads=64, kv_heads=64, head_dim=192, kv_lora_rank=512, qk_rope_head_dim=64),
)
"""Attention of Kimi K2.6: 70,272 bytes of BF16 KV per token."""


@dataclass(frozen=True)
class Arm:
    """What one process measures."""

    facts: ModelFacts
    kv: KvFormat
    scaling: KvScaling = KvScaling.PER_TENSOR


ARMS = {
    "gqa_bf16": Arm(QWEN3_30B, KvFormat.BF16),
    "gqa_fp8": Arm(QWEN3_30B, KvFormat.FP8),
    "gqa_fp8_token_head": Arm(QWEN3_30B, KvFormat.FP8, KvScaling.PER_TOKEN_HEAD),
    "mla_bf16": Arm(KIMI_K26, KvFormat.BF16),
    "mla_fp8": Arm(KIMI_K26, KvFormat.FP8),
}


@dataclass(frozen=True)
class Filled:
    """One arm's pool at the moment of refusal."""

    tokens: int
    """Tokens in pages that requests hold."""
    storage_bytes: int
    """Bytes of all tensors of the pool, integrity records and scales beside the pages included."""
    resident_bytes: int
    """How much the process's peak of resident memory grew by the pool."""
    page_size: int

    @property
    def bytes_per_token(self) -> float:
        """Storage bytes of held pages for each token, records included; the one NULL page is left out, since its share
        depends on the pool's size and not on the format."""
        pages = self.tokens // self.page_size
        return self.storage_bytes * pages / (pages + 1) / self.tokens


def fill(
    facts: ModelFacts,
    kv: KvFormat,
    budget_bytes: int,
    page_size: int = DEFAULT_PAGE_SIZE,
    scaling: KvScaling = KvScaling.PER_TENSOR,
) -> Filled:
    """Allocate the pool for `budget_bytes` in this process and fill it until it refuses."""
    layout = ParallelLayout.of(facts, 1)
    capacity = kv_capacity(facts, kv, layout, budget_bytes, page_size, scaling)
    before = peak_resident_bytes()
    cache = KvCache.allocate(facts, layout, kv, capacity.num_pages, page_size, torch.device("cpu"), scaling)
    cache.commit()
    grown = peak_resident_bytes() - before
    manager, holdings = KvManager(PagePool(capacity.num_pages, page_size), Nonces(seed=1), None), list[Holding]()
    while manager.available_pages:
        holding = manager.start(Match())
        manager.extend(holding, min(REQUEST_TOKENS, manager.available_pages * page_size))
        holdings.append(holding)
    refused(manager)
    manager.check_integrity(holdings)
    tokens = sum(len(holding.pages) for holding in holdings) * page_size
    return Filled(tokens, cache.storage_bytes, grown, page_size)


def refused(manager: KvManager) -> None:
    """Make sure that the pool does refuse one token more."""
    try:
        manager.extend(manager.start(Match()), 1)
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
    """Figures of all arms and their ratios."""
    budget = QUICK_BUDGET_BYTES if quick else BUDGET_BYTES
    filled = {name: _in_a_process_of_its_own(name, budget) for name in ARMS}
    figures: dict[str, object] = {"budget_bytes": budget, "page_size": DEFAULT_PAGE_SIZE}
    for name, one in filled.items():
        figures |= {f"{key}_{name}": value for key, value in asdict(one).items() if key != "page_size"}
        figures[f"bytes_per_token_{name}"] = round(one.bytes_per_token, 4)
    for ratio, bf16, fp8 in (
        ("gqa", "gqa_bf16", "gqa_fp8"),
        ("gqa_token_head", "gqa_bf16", "gqa_fp8_token_head"),
        ("mla", "mla_bf16", "mla_fp8"),
    ):
        figures[f"capacity_ratio_{ratio}"] = round(filled[bf16].bytes_per_token / filled[fp8].bytes_per_token, 6)
        figures[f"row_ratio_{ratio}"] = round(_row_bytes(bf16) / _row_bytes(fp8), 6)
        figures[f"tokens_ratio_same_budget_{ratio}"] = round(filled[fp8].tokens / filled[bf16].tokens, 4)
    figures["integrity_bytes_per_token"] = PAGE_METADATA_BYTES / DEFAULT_PAGE_SIZE
    return figures


def sheet(figures: dict[str, object]) -> str:
    """The figures for people."""
    rows = [
        f"KV pool of {figures['budget_bytes']} bytes, pages of {figures['page_size']} tokens, filled to refusal:",
        "",
    ]
    rows.append(f"{'':20}{'tokens':>10}{'storage bytes':>16}{'peak resident grew by':>24}{'bytes/token':>14}")
    for name in ARMS:
        rows.append(
            f"{name:20}{figures[f'tokens_{name}']:>10}{figures[f'storage_bytes_{name}']:>16}"
            f"{figures[f'resident_bytes_{name}']:>24}{figures[f'bytes_per_token_{name}']:>14}"
        )
    rows.append("\nTokens per byte, FP8 over BF16, everything counted (rows and their scales alone):")
    for ratio in ("gqa", "gqa_token_head", "mla"):
        rows.append(f"{ratio:20}{figures[f'capacity_ratio_{ratio}']:>10} ({figures[f'row_ratio_{ratio}']})")
    rows.append(f"Integrity records take {figures['integrity_bytes_per_token']} bytes per token.")
    return "\n".join(rows)


def _row_bytes(name: str) -> int:
    arm = ARMS[name]
    return kv_bytes_per_token(arm.facts, arm.kv, ParallelLayout.of(arm.facts, 1), arm.scaling)


def _in_a_process_of_its_own(name: str, budget_bytes: int) -> Filled:
    command = [sys.executable, "-m", "benchmarks.capacity", name, str(budget_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return Filled(**json.loads(done.stdout))


if __name__ == "__main__":
    arm = ARMS[sys.argv[1]]
    print(json.dumps(asdict(fill(arm.facts, arm.kv, int(sys.argv[2]), scaling=arm.scaling))))
