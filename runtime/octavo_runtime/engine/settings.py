"""EngineSettings: what the engine process is told at start. None means that it decides, and says what it decided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.footprint import DEFAULT_PAGE_SIZE
from octavo_runtime.contract.parallel import ParallelLayout, ParallelLayoutError
from octavo_runtime.contract.precision import ComputeCapability, KvFormat, KvScaling, WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.servable import check_servable
from octavo_runtime.engine.fault_kinds import FaultPlan
from octavo_runtime.engine.integrity import IntegrityMode


@dataclass(frozen=True)
class EngineSettings:
    """Frozen at the edge (flags); nothing deeper reads flags or the environment."""

    model: Path
    facts: ModelFacts
    weights: WeightFormat | None = None
    kv_cache: KvFormat | None = None
    kv_scaling: KvScaling = KvScaling.PER_TENSOR
    """Of an FP8 cache; BF16 has no scales."""
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
    allow_reference: bool = False
    """Run the specification of an operation where no fast kernel can."""
    prefix_cache: bool = True
    """Keep the pages of ended requests while nobody needs the memory, for prompts that begin with the same tokens."""
    digest_pages_per_step: int = 1
    """Full pages that a step reads again, to compare their digest with an earlier one; 0 leaves it out."""
    digest_interval: int = 8
    """Every how many steps that is done: reading a page costs a single request more than all other checks together."""
    pad_decode_to: tuple[int, ...] = ()
    """Batch sizes that steps of decoding requests are filled up to, for captured graphs; by default powers of two where
    graphs are captured, else none."""
    cuda_graphs: bool = False
    """Capture decode steps as CUDA graphs, where there is CUDA. Never together with `faults`: a replay would leave out
    what they do. Off until `make gpu-check` has run on a device."""
    faults: tuple[FaultPlan, ...] = ()
    """What `--inject-fault` asks for."""

    def layout(self) -> ParallelLayout:
        """How the ranks divide the model; raises Refused."""
        try:
            return ParallelLayout.of(self.facts, self.tensor_parallel_size)
        except ParallelLayoutError as error:
            message = f"--tensor-parallel-size {self.tensor_parallel_size}: {error}"
            raise Refused("LayoutUnsupported", message) from None

    def check(self) -> None:
        """Refuse what can be known to be wrong without a device and without torch."""
        check_servable(self.facts)
        self.layout()
        limit = self.facts.max_position_embeddings
        if self.max_model_len is not None and self.max_model_len > limit:
            raise Refused(
                "MaxModelLenTooLong", f"--max-model-len {self.max_model_len}: the model's positions end at {limit}"
            )
