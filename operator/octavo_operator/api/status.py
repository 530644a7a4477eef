"""ModelDeployment.status as pydantic models: what was seen, what was decided and why. No value in it ticks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, WithJsonSchema

from octavo_operator.api.spec import ApiModel
from octavo_runtime.contract.facts import ModelFacts

ShortText = Annotated[str, Field(max_length=512)]
Sentence = Annotated[str, Field(max_length=2048)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Timestamp = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 32})]


class ConditionType(StrEnum):
    """Conditions, in the order in which they become true. Ready sums the others up."""

    READY = "Ready"
    MODEL_INSPECTED = "ModelInspected"
    HARDWARE_RECOGNIZED = "HardwareRecognized"
    PLANNED = "Planned"
    WORKLOAD_AVAILABLE = "WorkloadAvailable"
    PROGRESSING = "Progressing"


class ConditionStatus(StrEnum):
    """As in every Kubernetes condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One finding. `lastTransitionTime` moves only when `status` does."""

    type: Annotated[str, Field(max_length=316)]
    status: ConditionStatus
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    message: Sentence
    observed_generation: Annotated[int, Field(ge=0)]
    last_transition_time: Timestamp


class ModelStatus(ApiModel):
    """The checkpoint as it was found."""

    source: Annotated[ShortText, Field(description="The source with its revision resolved; serving pods use this.")]
    revision: Annotated[ShortText, Field(description="Commit, image digest, or hash of config and tensor headers.")]
    inspection: Annotated[
        ShortText, Field(description="Hash of source, credential and replan that these facts were read for.")
    ]
    facts: ModelFacts


class PassedOverStatus(ApiModel):
    """An option that was not taken, and why."""

    option: ShortText
    why: Sentence


class PrecisionStatus(ApiModel):
    """Number formats with their reasons."""

    summary: ShortText
    weights: ShortText
    weights_reason: Sentence
    kv_cache: ShortText
    kv_cache_reason: Sentence
    converted: Annotated[bool, Field(description="Expert weights are requantised at load time, with loss.")]
    passed_over: Annotated[tuple[PassedOverStatus, ...], Field(max_length=32)] = ()


class HardwareStatus(ApiModel):
    """The hardware class that was planned for, and where its figures come from."""

    accelerator: ShortText
    generation: ShortText
    recognised: Annotated[bool, Field(description="Whether the precision table knows this generation.")]
    origin: Annotated[Sentence, Field(description="Node labels, spec.pools[].hardware, or nothing needed (CPU).")]
    compute_capability: Annotated[ShortText | None, Field()] = None
    memory_mib: Annotated[Count | None, Field(alias="memoryMiB")] = None
    gpus_per_node: Count | None = None
    nodes: Annotated[Count | None, Field(description="Nodes of this class when the plan was made.")] = None


class MemoryStatus(ApiModel):
    """Where the bytes of one GPU (or of a CPU pod) go. The lines add up to `total`."""

    routed_experts: Bytes
    embeddings: Bytes
    other_weights: Bytes
    kv_cache: Bytes
    activations: Annotated[Bytes, Field(description="Activations, logits and conversion scratch.")]
    runtime: Annotated[Bytes, Field(description="Interpreter, libraries, device context, fragmentation.")]
    unused: Bytes
    total: Bytes


class PoolPlanStatus(ApiModel):
    """The plan for one pool."""

    name: ShortText
    accelerators: Annotated[ShortText, Field(description='"8x9.0": GPUs per replica x compute capability, or CPU.')]
    hardware: HardwareStatus
    precision: PrecisionStatus
    gpus_per_replica: Count
    memory: Annotated[MemoryStatus, Field(description="Bytes per GPU; of the whole pod on a CPU.")]
    max_model_len: Count
    max_concurrent_requests: Count
    kv_tokens: Annotated[Count, Field(description="Tokens that the KV cache of one replica holds.")]
    passed_over: Annotated[tuple[PassedOverStatus, ...], Field(max_length=64)] = ()


class PlanStatus(ApiModel):
    """What is deployed, and what would be deployed if it were planned now."""

    image: ShortText
    pools: Annotated[tuple[PoolPlanStatus, ...], Field(max_length=1)]
    outdated: Annotated[
        Sentence | None,
        Field(description="What a new plan would change; annotate serving.octavo.dev/replan to take it."),
    ] = None


class ModelDeploymentStatus(ApiModel):
    """What is."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = ()
    replicas: Count = 0
    ready_replicas: Count = 0
    replica_summary: Annotated[ShortText, Field(description="Ready pods of this plan / wanted pods.")] = ""
    selector: Annotated[ShortText, Field(description="Label selector of the serving pods.")] = ""
    url: ShortText | None = None
    model: ModelStatus | None = None
    plan: PlanStatus | None = None

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, if it is there."""
        return next((item for item in self.conditions if item.type == kind.value), None)
