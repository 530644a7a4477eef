"""Which number formats each GPU generation really runs well, and why (DESIGN.md section 5; the only place).

`choose_precision` is used by the operator to plan and by `octavo serve --weights auto --kv-cache-dtype auto`.
Generations are told apart by compute capability as two integers, never by product name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from octavo_runtime.contract.facts import CheckpointFormat
from octavo_runtime.contract.refused import Refused


class WeightFormat(StrEnum):
    """Format of routed-expert weights in device memory."""

    BF16 = "BF16"
    FP8 = "FP8"
    INT4 = "INT4"
    NVFP4 = "NVFP4"


class KvFormat(StrEnum):
    """Format of keys and values in the paged cache."""

    BF16 = "BF16"
    FP8 = "FP8"

    @property
    def bytes_per_element(self) -> int:
        """Storage bytes of one key or value element."""
        return 1 if self is KvFormat.FP8 else 2


class KvScaling(StrEnum):
    """What one scale of FP8 keys and values covers. BF16 has no scales."""

    PER_TENSOR = "PerTensor"
    """All keys (values) of a layer; known before the first token."""
    PER_TOKEN_HEAD = "PerTokenHead"
    """One token's key (value) of one head, found when it is stored; MLA: one token's row."""


class Objective(StrEnum):
    """What precision is chosen for. Auto means latency: weights read for few tokens at a time."""

    AUTO = "Auto"
    LATENCY = "Latency"
    THROUGHPUT = "Throughput"


class Conversion(StrEnum):
    """Whether weights may be converted to a smaller format at load time."""

    ALLOWED = "Allowed"
    NEVER = "Never"


@dataclass(frozen=True, order=True)
class ComputeCapability:
    """CUDA compute capability as two integers; 10.0 is newer than 9.0."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> ComputeCapability:
        """Parse `"9.0"`; raises ValueError naming the text."""
        major, dot, minor = text.partition(".")
        if not (text.isascii() and dot and major.isdecimal() and minor.isdecimal()):
            raise ValueError(f"compute capability must look like 9.0, got {text!r}")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True)
class Generation:
    """One row of the table: formats best first, and what to call the hardware in a sentence."""

    name: str
    kv: tuple[KvFormat, ...]
    kv_note: str
    latency: tuple[WeightFormat, ...]
    throughput: tuple[WeightFormat, ...]
    native: frozenset[WeightFormat] = frozenset()
    """Quantised formats that the matrix units multiply as they are; every other one is dequantised in the kernel."""
    recognised: bool = True
    int4_note: str = ""
    """What INT4 products round besides the weights."""


_B, _F8, _I4, _NV = WeightFormat.BF16, WeightFormat.FP8, WeightFormat.INT4, WeightFormat.NVFP4
_KV_FP8 = (KvFormat.FP8, KvFormat.BF16)

CPU = Generation(
    "CPU",
    _KV_FP8,
    "stored as FP8 e4m3, computed in FP32",
    (_I4, _B),
    (_I4, _B),
    int4_note="; their products round activations to 8 bits per group where the CPU has AVX2",
)
AMPERE = Generation("Ampere", _KV_FP8, "stored as FP8, upcast exactly in the kernel", (_I4, _B), (_I4, _B))
ADA = Generation("Ada", _KV_FP8, "FP8 e4m3", (_F8, _I4, _B), (_F8, _I4, _B), frozenset({_F8}))
HOPPER = Generation("Hopper", _KV_FP8, "FP8 e4m3", (_I4, _F8, _B), (_F8, _I4, _B), frozenset({_F8}))
BLACKWELL = Generation(
    "Blackwell data centre", _KV_FP8, "FP8 e4m3", (_NV, _F8, _I4, _B), (_NV, _F8, _I4, _B), frozenset({_F8, _NV})
)
BLACKWELL_WORKSTATION = Generation(
    "Blackwell workstation", _KV_FP8, "FP8 e4m3", (_NV, _F8, _I4, _B), (_NV, _F8, _I4, _B), frozenset({_F8, _NV})
)
UNKNOWN = Generation("unrecognised generation", (KvFormat.BF16,), "BF16", (_B,), (_B,), recognised=False)

_TABLE: dict[tuple[int, int], Generation] = {
    (8, 0): AMPERE,
    (8, 6): AMPERE,
    (8, 7): AMPERE,
    (8, 9): ADA,
    (9, 0): HOPPER,
    (10, 0): BLACKWELL,
    (10, 3): BLACKWELL,
    (12, 0): BLACKWELL_WORKSTATION,
    (12, 1): BLACKWELL_WORKSTATION,
}
OLDEST = ComputeCapability(8, 0)

BUNDLED_RUNTIME_WEIGHTS = frozenset({WeightFormat.BF16, WeightFormat.INT4})
"""Expert formats that this version of the bundled runtime can load; the table is about hardware, this is about us."""


def generation_of(capability: ComputeCapability | None) -> Generation:
    """The table's row; no capability means CPU, one that the table does not know gives the safe BF16 row.

    Raises PrecisionRefused for devices without bfloat16.
    """
    if capability is None:
        return CPU
    if capability < OLDEST:
        raise PrecisionRefused(
            "DeviceTooOld", f"compute capability {capability} has no bfloat16; Octavo needs {OLDEST} or newer"
        )
    return _TABLE.get((capability.major, capability.minor), UNKNOWN)


class PrecisionRefused(Refused):
    """No allowed format runs on this device."""


@dataclass(frozen=True)
class PassedOver:
    """An option that was not taken, and why."""

    option: str
    why: str


@dataclass(frozen=True)
class PrecisionRequest:
    """What the user asked for; None means Auto."""

    weights: WeightFormat | None = None
    kv: KvFormat | None = None
    objective: Objective = Objective.AUTO
    conversion: Conversion = Conversion.ALLOWED


@dataclass(frozen=True)
class PrecisionChoice:
    """Formats with their reasons. `converted` says that expert weights are requantised at load time (lossy)."""

    weights: WeightFormat
    weights_reason: str
    kv: KvFormat
    kv_reason: str
    converted: bool
    recognised: bool
    passed_over: tuple[PassedOver, ...]

    @property
    def summary(self) -> str:
        """Short form for a printer column, e.g. `INT4, KV FP8`."""
        return f"{self.weights}, KV {self.kv}"


def choose_precision(
    capability: ComputeCapability | None,
    checkpoint: CheckpointFormat,
    request: PrecisionRequest,
    supported: frozenset[WeightFormat] = BUNDLED_RUNTIME_WEIGHTS,
) -> PrecisionChoice:
    """Pick weight and KV formats for a device and a checkpoint.

    `capability` is None on a CPU. Auto takes the best entry of the generation's row that the runtime supports and
    `request.conversion` allows; an explicit request is honoured or refused, never replaced. A quantised checkpoint
    keeps its own format. Raises PrecisionRefused with a reason.
    """
    generation = generation_of(capability)
    where = generation.name if capability is None else f"{generation.name} ({capability})"
    passed: list[PassedOver] = []
    weights, weights_reason = _choose_weights(generation, where, checkpoint, request, supported, passed)
    kv, kv_reason = _choose_kv(generation, where, request, passed)
    return PrecisionChoice(
        weights=weights,
        weights_reason=weights_reason,
        kv=kv,
        kv_reason=kv_reason,
        converted=not checkpoint.quantised and weights is not WeightFormat.BF16,
        recognised=generation.recognised,
        passed_over=tuple(passed),
    )


def _choose_kv(
    generation: Generation, where: str, request: PrecisionRequest, passed: list[PassedOver]
) -> tuple[KvFormat, str]:
    if request.kv is not None:
        if request.kv not in generation.kv:
            raise PrecisionRefused(
                "KvCacheUnsupported",
                f"precision.kvCache {request.kv} does not run on {where}; use {generation.kv[0]} or Auto",
            )
        return request.kv, f"asked for by precision.kvCache {request.kv}"
    best = generation.kv[0]
    passed.extend(PassedOver(f"KV {other}", f"holds half the tokens of {best}") for other in generation.kv[1:])
    if best is KvFormat.FP8:
        return best, f"{where}: {generation.kv_note}; holds twice the tokens of BF16"
    return best, f"{where}: BF16, the safe choice where FP8 is unproven"


def _choose_weights(
    generation: Generation,
    where: str,
    checkpoint: CheckpointFormat,
    request: PrecisionRequest,
    supported: frozenset[WeightFormat],
    passed: list[PassedOver],
) -> tuple[WeightFormat, str]:
    if checkpoint.quantised:
        return _keep_quantised(WeightFormat(checkpoint.value), generation, where, request, supported)
    if request.weights is not None:
        return _asked_for(request.weights, generation, where, checkpoint, request, supported)
    row = generation.throughput if request.objective is Objective.THROUGHPUT else generation.latency
    for option in row:
        why_not = _why_not(option, request, supported)
        if why_not is None:
            passed.extend(
                PassedOver(f"weights {o}", f"{option} ranks before it on {where}") for o in row[row.index(option) + 1 :]
            )
            return option, _why(option, generation, where, checkpoint, request)
        passed.append(PassedOver(f"weights {option}", why_not))
    raise PrecisionRefused(
        "NoWeightFormat",
        f"no weight format of {where} can be used: " + "; ".join(f"{item.option}: {item.why}" for item in passed),
    )


def _why_not(option: WeightFormat, request: PrecisionRequest, supported: frozenset[WeightFormat]) -> str | None:
    if option not in supported:
        return "this version of the bundled runtime does not load it"
    if option is not WeightFormat.BF16 and request.conversion is Conversion.NEVER:
        return "precision.conversion is Never"
    return None


def _why(
    option: WeightFormat, generation: Generation, where: str, checkpoint: CheckpointFormat, request: PrecisionRequest
) -> str:
    if option is WeightFormat.BF16:
        how = "no conversion" if checkpoint is CheckpointFormat.BF16 else "rounded at load (lossy)"
        return f"{where}: {checkpoint} checkpoint served as BF16, {how}"
    goal = "throughput" if request.objective is Objective.THROUGHPUT else "latency"
    return (
        f"{where}: best for {goal}; routed experts of the {checkpoint} checkpoint are converted to {option} at load "
        f"(lossy{_rounding(option, generation)}), everything else stays BF16"
    )


def _rounding(option: WeightFormat, generation: Generation) -> str:
    return generation.int4_note if option is WeightFormat.INT4 else ""


def _keep_quantised(
    own: WeightFormat,
    generation: Generation,
    where: str,
    request: PrecisionRequest,
    supported: frozenset[WeightFormat],
) -> tuple[WeightFormat, str]:
    if request.weights not in {None, own}:
        raise PrecisionRefused(
            "WeightsFixedByCheckpoint",
            f"precision.weights {request.weights} asked for, but the checkpoint is {own}: "
            f"use Auto, or a checkpoint in another format",
        )
    if own not in supported:
        raise PrecisionRefused(
            "WeightsUnsupported",
            f"the checkpoint's {own} weights cannot be loaded by this version of the bundled runtime; "
            f"use a checkpoint in one of: {', '.join(sorted(supported))}",
        )
    if own not in generation.native:
        how = "weight-only: dequantised in the kernel, multiplied in BF16"
    elif own is WeightFormat.NVFP4:
        how = "native W4A4 where the checkpoint brings input scales, else weight-only"
    else:
        how = "multiplied natively"
    return own, f"the checkpoint is {own} already and keeps its format; on {where}: {how}"


def _asked_for(
    asked: WeightFormat,
    generation: Generation,
    where: str,
    checkpoint: CheckpointFormat,
    request: PrecisionRequest,
    supported: frozenset[WeightFormat],
) -> tuple[WeightFormat, str]:
    why_not = _why_not(asked, request, supported)
    if why_not is None and asked not in generation.latency:
        why_not = f"it does not run well on {where}"
    if why_not is not None:
        options = [o for o in generation.latency if _why_not(o, request, supported) is None]
        raise PrecisionRefused(
            "WeightsUnsupported",
            f"precision.weights {asked} cannot be used: {why_not}; possible here: {', '.join(options) or 'none'}",
        )
    note = ""
    if asked is not WeightFormat.BF16:
        note = f"; routed experts of the {checkpoint} checkpoint are converted (lossy{_rounding(asked, generation)})"
    elif checkpoint is not CheckpointFormat.BF16:
        note = f"; the {checkpoint} checkpoint is rounded at load (lossy)"
    return asked, f"asked for by precision.weights {asked}{note}"
