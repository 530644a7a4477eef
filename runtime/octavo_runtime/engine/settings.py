"""EngineSettings: what the engine process is told at start. None means that it decides, and says what it decided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.footprint import DEFAULT_PAGE_SIZE
from octavo_runtime.contract.precision import ComputeCapability, KvFormat, WeightFormat
from octavo_runtime.engine.integrity import IntegrityMode


@dataclass(frozen=True)
class EngineSettings:
    """Frozen at the edge (flags); nothing deeper reads flags or the environment."""

    model: Path
    facts: ModelFacts
    weights: WeightFormat | None = None
    kv_cache: KvFormat | None = None
    max_model_len: int | None = None
    """Tokens of prompt and answer of one request; by default what the model and the pool allow."""
    max_num_seqs: int = 32
    tokens_per_step: int = 512
    """New tokens per step of all requests together: bounds how long a step takes and so the gap between tokens."""
    kv_cache_memory_bytes: int | None = None
    page_size: int = DEFAULT_PAGE_SIZE
    tensor_parallel_size: int = 1
    expect_compute_capability: ComputeCapability | None = None
    expect_memory_mib: int | None = None
    integrity: IntegrityMode = IntegrityMode.ENFORCE
