"""ModelDeployment.spec as pydantic models. A field is here only when it does something.

The CRD's schema is generated from these classes (api/crd.py), so every list, map and string has a bound: CEL rules
over unbounded values are refused by the API server for their cost.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.precision import (
    ComputeCapability,
    Conversion,
    KvFormat,
    Objective,
    PrecisionRequest,
    WeightFormat,
)

SOURCE_PATTERN = (
    r"^(hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._/-]+)?"
    r"|oci://[a-z0-9][A-Za-z0-9._:/@-]*"
    r"|pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/[A-Za-z0-9._/-]*)?)$"
)
SOURCE_MESSAGE = "must be hf://ORGANISATION/REPOSITORY[@REVISION], oci://IMAGE or pvc://CLAIM[/PATH]"

DEFAULT_POOL = "default"
"""Name of the pool where the spec has none."""

LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Line = Annotated[str, Field(max_length=4096)]
QUANTITY_PATTERN = r"^[+-]?[0-9.]+([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,2})?$"
"""Two digits of exponent at most; `parse_quantity` bounds the amount itself."""
Quantity = Annotated[
    int | str,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
            "x-kubernetes-int-or-string": True,
        }
    ),
]

LIST_BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Lists whose entries the API server merges by name instead of replacing the whole list."""


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """JSON-schema extra with CEL rules, as (rule, message)."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


class ApiModel(BaseModel):
    """Frozen, closed, camelCase in YAML."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, protected_namespaces=()
    )


class Accelerator(StrEnum):
    """What the pods of a pool run on. `None` (as a string) is the CPU."""

    NVIDIA = "NVIDIA"
    NONE = "None"


class WeightsChoice(StrEnum):
    """precision.weights."""

    AUTO = "Auto"
    BF16 = "BF16"
    FP8 = "FP8"
    INT4 = "INT4"
    NVFP4 = "NVFP4"


class KvCacheChoice(StrEnum):
    """precision.kvCache."""

    AUTO = "Auto"
    BF16 = "BF16"
    FP8 = "FP8"


class SecretReference(ApiModel):
    """A Secret in the same namespace."""

    name: Annotated[Name, Field(description="Name of a Secret in the same namespace.")]


class ModelSpec(ApiModel):
    """Which model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.secretRef) || !self.source.startsWith('pvc://')",
                "model.secretRef is not used with a pvc:// source; remove it",
            )
        )
    )

    source: Annotated[
        str,
        Field(
            min_length=7,
            max_length=512,
            description="Where the checkpoint is: hf://ORGANISATION/REPOSITORY[@REVISION], oci://IMAGE (mounted as an "
            "image volume, checkpoint at the image's root) or pvc://CLAIM[/PATH].",
            json_schema_extra=rules((f"self.matches(r'{SOURCE_PATTERN}')", SOURCE_MESSAGE)),
        ),
    ]
    served_name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=128,
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$",
            description="Model name in the OpenAI API; default: metadata.name.",
        ),
    ] = None
    facts: Annotated[
        ModelFacts | None,
        Field(description="Output of `octavo inspect --json`. When given, no inspect pod runs."),
    ] = None
    secret_ref: Annotated[
        SecretReference | None,
        Field(description="Credential of the source: key `token` for hf://, an image pull secret for oci://."),
    ] = None


class PrecisionSpec(ApiModel):
    """Which number formats. Auto takes the best that the hardware really runs; status says why."""

    weights: Annotated[WeightsChoice, Field(description="Format of the routed experts in memory.")] = WeightsChoice.AUTO
    kv_cache: Annotated[KvCacheChoice, Field(description="Format of keys and values in the cache.")] = (
        KvCacheChoice.AUTO
    )
    objective: Annotated[Objective, Field(description="What Auto optimises; Auto means Latency.")] = Objective.AUTO
    conversion: Annotated[
        Conversion, Field(description="Whether weights may be converted (with loss) when they are loaded.")
    ] = Conversion.ALLOWED

    def to_request(self) -> PrecisionRequest:
        """The same wish in the words of the precision table."""
        return PrecisionRequest(
            weights=None if self.weights is WeightsChoice.AUTO else WeightFormat(self.weights.value),
            kv=None if self.kv_cache is KvCacheChoice.AUTO else KvFormat(self.kv_cache.value),
            objective=self.objective,
            conversion=self.conversion,
        )


class ContextSpec(ApiModel):
    """How long and how many requests. Planned from the memory where absent."""

    max_model_len: Annotated[
        int | None, Field(ge=1, le=16_777_216, description="Tokens of prompt and answer together, per request.")
    ] = None
    max_concurrent_requests: Annotated[
        int | None, Field(ge=1, le=4096, description="Requests that one replica runs at once.")
    ] = None


class Toleration(ApiModel):
    """A pod toleration."""

    key: Annotated[str | None, Field(max_length=317)] = None
    operator: Annotated[str | None, Field(max_length=16, json_schema_extra={"enum": ["Exists", "Equal"]})] = None
    value: Annotated[str | None, Field(max_length=63)] = None
    effect: Annotated[
        str | None, Field(max_length=32, json_schema_extra={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]})
    ] = None
    toleration_seconds: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None


class HardwareSpec(ApiModel):
    """The pool's hardware in figures, for clusters whose nodes may not be read or carry no labels."""

    compute_capability: Annotated[
        str | None,
        Field(max_length=7, pattern=r"^[0-9]{1,3}\.[0-9]{1,2}$", description='As the driver reports it, e.g. "9.0".'),
    ] = None
    memory_mib: Annotated[
        int,
        Field(
            ge=64,
            le=2**31 - 1,
            alias="memoryMiB",
            description="MiB of one GPU; in a CPU pool, of memory that one pod may use.",
        ),
    ]

    @property
    def capability(self) -> ComputeCapability | None:
        """The compute capability as two integers."""
        return None if self.compute_capability is None else ComputeCapability.parse(self.compute_capability)


class PoolSpec(ApiModel):
    """Where the pods run."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.accelerator) || self.accelerator != 'None' || "
                "(!has(self.resourceName) && !has(self.gpusPerReplica))",
                "a CPU pool (accelerator: None) has no resourceName and no gpusPerReplica; remove them",
            ),
            (
                "!has(self.hardware) || has(self.hardware.computeCapability) == "
                "(!has(self.accelerator) || self.accelerator != 'None')",
                "hardware.computeCapability is needed in a GPU pool and must be absent in a CPU pool",
            ),
        )
    )

    name: Annotated[
        str,
        Field(min_length=1, max_length=15, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="Names its pods."),
    ]
    accelerator: Annotated[Accelerator, Field(description="NVIDIA, or None for the CPU.")] = Accelerator.NVIDIA
    resource_name: Annotated[
        LabelKey | None, Field(description="Extended resource of one GPU; default nvidia.com/gpu.")
    ] = None
    node_selector: Annotated[
        dict[LabelKey, LabelValue], Field(max_length=32, description="Labels that the pool's nodes have.")
    ] = {}
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    runtime_class_name: Annotated[Name | None, Field(description="RuntimeClass of the serving pods.")] = None
    hardware: HardwareSpec | None = None
    gpus_per_replica: Annotated[
        int | None, Field(ge=1, le=64, description="GPUs that one replica is spread over; planned where absent.")
    ] = None


class RolloutSpec(ApiModel):
    """How pods are replaced."""

    drain_seconds: Annotated[
        int, Field(ge=0, le=86_400, description="How long a stopping pod may finish its requests; default 120.")
    ] = 120


class EnvironmentVariable(ApiModel):
    """A variable in the containers of inspect and serving pods, e.g. HF_ENDPOINT or HTTPS_PROXY."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    value: Annotated[Line, Field()] = ""


class Resources(ApiModel):
    """Requests and limits, merged over the planned ones."""

    requests: Annotated[dict[LabelKey, Quantity], Field(max_length=16)] = {}
    limits: Annotated[dict[LabelKey, Quantity], Field(max_length=16)] = {}


class EngineSpec(ApiModel):
    """The server program."""

    image: Annotated[
        str | None, Field(min_length=1, max_length=512, description="Runtime image; default: the operator's.")
    ] = None
    extra_args: Annotated[
        tuple[Line, ...], Field(max_length=64, description="Arguments of `octavo serve` after the planned ones.")
    ] = ()
    env: Annotated[
        tuple[EnvironmentVariable, ...],
        Field(max_length=64, json_schema_extra=LIST_BY_NAME),
    ] = ()
    resources: Resources = Resources()


class ModelDeploymentSpec(ApiModel):
    """What the user wants."""

    model: ModelSpec
    precision: PrecisionSpec = PrecisionSpec()
    context: ContextSpec = ContextSpec()
    pools: Annotated[
        tuple[PoolSpec, ...],
        Field(
            max_length=1,
            description="Where the pods run; default: the best NVIDIA GPUs in the cluster.",
            json_schema_extra=LIST_BY_NAME,
        ),
    ] = ()
    replicas: Annotated[int, Field(ge=0, le=1000, description="Pods; also set by `kubectl scale`.")] = 1
    rollout: RolloutSpec = RolloutSpec()
    engine: EngineSpec = EngineSpec()

    @property
    def pool(self) -> PoolSpec:
        """The one pool, or the default one."""
        return self.pools[0] if self.pools else PoolSpec(name=DEFAULT_POOL)
