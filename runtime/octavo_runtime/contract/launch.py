"""Launch flags: what the operator writes into a pod's arguments and `octavo serve` reads back."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_runtime.contract.container import DRAIN_ANNOUNCE_SECONDS as DRAIN_ANNOUNCE_SECONDS
from octavo_runtime.contract.container import DRAIN_GRACE_MARGIN_SECONDS as DRAIN_GRACE_MARGIN_SECONDS
from octavo_runtime.contract.container import DRAIN_SECONDS
from octavo_runtime.contract.container import HTTP_PORT as HTTP_PORT
from octavo_runtime.contract.container import TERMINATION_LIMIT_BYTES as TERMINATION_LIMIT_BYTES
from octavo_runtime.contract.container import TERMINATION_LOG as TERMINATION_LOG
from octavo_runtime.contract.footprint import DEFAULT_PAGE_SIZE
from octavo_runtime.contract.integrity import IntegrityMode
from octavo_runtime.contract.precision import ComputeCapability, KvFormat, WeightFormat

MAX_NUM_BATCHED_TOKENS = 512
"""Tokens of the largest forward step, the default of `octavo serve --max-num-batched-tokens`. Longer prompts are
computed in chunks of this size; the planner counts its activations."""


@dataclass(frozen=True)
class LaunchFlags:
    """Arguments of `octavo serve`. Every field is a flag of the same name with dashes; None leaves the flag out."""

    model: str
    """Directory of the checkpoint; the positional argument."""
    served_model_name: str
    weights: WeightFormat
    kv_cache_dtype: KvFormat
    max_model_len: int
    """Tokens of prompt and answer together that one request may have."""
    max_num_seqs: int
    """Requests that run at once (batch slots)."""
    kv_cache_memory_bytes: int
    """Bytes of the paged KV pool on each rank, integrity records included."""
    page_size: int = DEFAULT_PAGE_SIZE
    tensor_parallel_size: int = 1
    drain_seconds: int = DRAIN_SECONDS
    expect_compute_capability: ComputeCapability | None = None
    expect_memory_mib: int | None = None
    port: int = HTTP_PORT
    kv_integrity: IntegrityMode | None = None

    def to_argv(self) -> tuple[str, ...]:
        """`("serve", MODEL, "--flag=value", ...)`, in a stable order."""
        flags = [
            f"--served-model-name={self.served_model_name}",
            f"--weights={self.weights.lower()}",
            f"--kv-cache-dtype={self.kv_cache_dtype.lower()}",
            f"--max-model-len={self.max_model_len}",
            f"--max-num-seqs={self.max_num_seqs}",
            f"--kv-cache-memory-bytes={self.kv_cache_memory_bytes}",
            f"--page-size={self.page_size}",
            f"--tensor-parallel-size={self.tensor_parallel_size}",
            f"--drain-seconds={self.drain_seconds}",
            f"--port={self.port}",
        ]
        if self.expect_compute_capability is not None:
            flags.append(f"--expect-compute-capability={self.expect_compute_capability}")
        if self.expect_memory_mib is not None:
            flags.append(f"--expect-memory-mib={self.expect_memory_mib}")
        if self.kv_integrity is not None:
            flags.append(f"--kv-integrity={self.kv_integrity}")
        return ("serve", self.model, *flags)
