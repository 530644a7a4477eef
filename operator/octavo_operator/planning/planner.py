"""Plan one replica: precision, number of GPUs, bytes, context and concurrency.

Defaults where the spec says nothing:

* `maxModelLen`: what the model allows, at most what the KV cache of one replica holds; on a CPU at most 8,192, because
  memory there is asked for rather than given.
* `maxConcurrentRequests`: 64 on GPUs and 16 on a CPU, fewer when the KV cache does not hold 1,024 tokens for each.
* `gpusPerReplica`: the smallest number that the runtime runs on, that divides the model and that leaves a KV cache for
  the wanted (else 8,192) tokens.
* KV cache: all memory that is left on a GPU; on a CPU 1,024 tokens (or the context, if that is less) per request.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from octavo_operator.api.hardware import CpuFacts
from octavo_operator.planning.plan import MemoryLines, NoPlan, Plan, PlanRequest
from octavo_operator.planning.reserves import MIB, activation_bytes, runtime_bytes
from octavo_runtime.contract.footprint import (
    DEFAULT_PAGE_SIZE,
    bytes_for_tokens,
    page_bytes,
    tokens_in,
    weight_bytes,
)
from octavo_runtime.contract.parallel import ParallelLayout, ParallelLayoutError, feasible_world_sizes
from octavo_runtime.contract.precision import (
    Conversion,
    PassedOver,
    PrecisionChoice,
    PrecisionRefused,
    choose_precision,
)

CPU_CONTEXT = 8192
"""Default context on a CPU, and on a GPU the shortest that is worth starting for."""
CPU_SHORTEST_CONTEXT = 1024
CPU_REQUESTS = 16
GPU_REQUESTS = 64
TYPICAL_REQUEST_TOKENS = 1024
"""Average tokens held by a running request, for defaults only."""
SHORTEST_ADVISED_CONTEXT = 256
"""A shorter context is not worth advising."""
GIB = 2**30
UNSUPPORTED_SIZE = "TensorParallelUnsupported"
"""Reason for machines; the runtime gives the same one when it is started with such a size."""


@dataclass(frozen=True)
class Lack:
    """A number of ranks that does not fit, and by how much."""

    ranks: int
    missing_bytes: int
    """On each GPU."""
    precision: PrecisionChoice
    fitting_tokens: int
    """Tokens of KV cache that would fit as things are; 0 when not even the weights do."""
    tokens: int
    """Tokens that were needed."""


def plan(request: PlanRequest) -> Plan | NoPlan:
    """The plan for one replica, or why there is none and the smallest change that would help."""
    refusal = _precheck(request)
    if refusal is not None:
        return refusal
    try:
        outcome, passed = _search(request)
    except PrecisionRefused as refused:
        return NoPlan(refused.reason, refused.message)
    match outcome:
        case Plan():
            return dataclasses.replace(outcome, passed_over=tuple(passed))
        case Lack():
            return _no_fit(request, outcome)
        case None:
            return NoPlan("NotDivisible", "; ".join(f"{item.option}: {item.why}" for item in passed))


def _precheck(request: PlanRequest) -> NoPlan | None:
    facts, wanted = request.facts, request.max_model_len
    if facts.experts is None:
        return NoPlan(
            "NotMixtureOfExperts",
            f"{facts.architecture} has no routed experts; Octavo serves mixture-of-experts models: "
            "choose another spec.model.source",
        )
    if wanted is not None and wanted > facts.max_position_embeddings:
        return NoPlan(
            "ContextTooLong",
            f"context.maxModelLen {wanted} exceeds the model's {facts.max_position_embeddings} positions; "
            f"set it to at most {facts.max_position_embeddings}",
        )
    hardware, gpus = request.hardware, request.gpus_per_replica
    if gpus is not None and not _runs_on(request, gpus):
        return NoPlan(
            UNSUPPORTED_SIZE,
            f"gpusPerReplica {gpus}: {_runtime_limit(request)}; leave out pools[].gpusPerReplica",
        )
    if not isinstance(hardware, CpuFacts) and gpus is not None and gpus > hardware.gpus_per_node:
        return NoPlan(
            "NotEnoughGPUs",
            f"gpusPerReplica {gpus} exceeds the {hardware.gpus_per_node} GPUs of the pool's largest node; "
            "a replica does not span nodes",
        )
    return None


def _runs_on(request: PlanRequest, ranks: int) -> bool:
    return request.world_sizes is None or ranks in request.world_sizes


def _runtime_limit(request: PlanRequest) -> str:
    """Which numbers of GPUs the runtime runs on, in words; empty when any."""
    if request.world_sizes is None:
        return ""
    numbers = " or ".join(map(str, sorted(request.world_sizes)))
    return f"this version of the bundled runtime runs on {'one GPU' if numbers == '1' else f'{numbers} GPUs'}"


def _sizes(request: PlanRequest) -> tuple[int, ...]:
    """Numbers of ranks to try, ascending."""
    if isinstance(request.hardware, CpuFacts):
        return (1,)
    if request.gpus_per_replica is not None:
        return (request.gpus_per_replica,)
    return feasible_world_sizes(request.facts, request.hardware.gpus_per_node)


def _search(request: PlanRequest) -> tuple[Plan | Lack | None, list[PassedOver]]:
    """The first number of ranks that fits, or the closest miss; raises PrecisionRefused."""
    capability = None if isinstance(request.hardware, CpuFacts) else request.hardware.capability
    precision = choose_precision(capability, request.facts.format, request.precision)
    passed: list[PassedOver] = []
    closest: Lack | None = None
    for ranks in _sizes(request):
        if not _runs_on(request, ranks):
            passed.append(PassedOver(f"{ranks} GPUs", _runtime_limit(request)))
            continue
        try:
            layout = ParallelLayout.of(request.facts, ranks)
        except ParallelLayoutError as error:
            passed.append(PassedOver(f"{ranks} GPUs", str(error)))
            continue
        outcome = _fit(request, precision, layout)
        if isinstance(outcome, Plan):
            return outcome, passed
        passed.append(PassedOver(f"{ranks} GPUs", f"{outcome.missing_bytes / GIB:.1f} GiB per GPU are missing"))
        if closest is None or outcome.missing_bytes < closest.missing_bytes:
            closest = outcome
    return closest, passed


def _fit(request: PlanRequest, precision: PrecisionChoice, layout: ParallelLayout) -> Plan | Lack:
    facts, hardware = request.facts, request.hardware
    on_cpu = isinstance(hardware, CpuFacts)
    sequences = request.max_concurrent_requests or (CPU_REQUESTS if on_cpu else GPU_REQUESTS)
    weights = weight_bytes(facts, precision.weights, layout)
    activations = activation_bytes(facts, precision.weights, layout, sequences, hardware)
    runtime = runtime_bytes(hardware)
    budget = _budget(request)
    fixed = weights.total + activations + runtime
    longest = request.max_model_len or min(facts.max_position_embeddings, CPU_CONTEXT)
    shortest = request.max_model_len or min(longest, CPU_SHORTEST_CONTEXT if on_cpu else CPU_CONTEXT)
    needed = fixed + bytes_for_tokens(shortest, facts, precision.kv, layout)
    if budget is not None and needed > budget:
        room = tokens_in(budget - fixed, facts, precision.kv, layout)
        return Lack(layout.world_size, needed - budget, precision, room, shortest)
    kv_bytes = _kv_bytes(request, precision, layout, sequences, longest, None if budget is None else budget - fixed)
    kv_tokens = tokens_in(kv_bytes, facts, precision.kv, layout)
    if request.max_model_len is None:
        longest = min(longest if on_cpu else facts.max_position_embeddings, kv_tokens)
    if request.max_concurrent_requests is None:
        sequences = max(1, min(sequences, kv_tokens // min(longest, TYPICAL_REQUEST_TOKENS)))
    return Plan(
        hardware=hardware,
        precision=precision,
        ranks=layout.world_size,
        memory=MemoryLines(
            routed_experts=weights.routed_experts,
            embeddings=weights.embeddings,
            other_weights=weights.other,
            kv_cache=kv_bytes,
            activations=activations,
            runtime=runtime,
            total=fixed + kv_bytes if on_cpu or budget is None else budget,
        ),
        max_model_len=longest,
        max_concurrent_requests=sequences,
        kv_tokens=kv_tokens,
        passed_over=(),
    )


def _budget(request: PlanRequest) -> int | None:
    """Bytes that one rank may use; None when nothing bounds a CPU pod."""
    if not isinstance(request.hardware, CpuFacts):
        return request.hardware.memory_mib * MIB
    known = [request.memory_limit_bytes]
    known.append(None if request.hardware.memory_mib is None else request.hardware.memory_mib * MIB)
    return min((item for item in known if item is not None), default=None)


def _kv_bytes(
    request: PlanRequest,
    precision: PrecisionChoice,
    layout: ParallelLayout,
    sequences: int,
    longest: int,
    room: int | None,
) -> int:
    """Bytes of the KV pool on one rank, in whole pages."""
    per_page = page_bytes(request.facts, precision.kv, layout)
    if not isinstance(request.hardware, CpuFacts) and room is not None:
        return room // per_page * per_page
    tokens = max(longest, sequences * min(longest, TYPICAL_REQUEST_TOKENS))
    wanted = bytes_for_tokens(tokens, request.facts, precision.kv, layout)
    return wanted if room is None else min(wanted, room // per_page * per_page)


def _no_fit(request: PlanRequest, lack: Lack) -> NoPlan:
    hardware = request.hardware
    missing = f"{lack.missing_bytes:,} bytes ({lack.missing_bytes / GIB:.1f} GiB)"
    what = f"{lack.precision.weights} weights and {lack.tokens:,} tokens of {lack.precision.kv} KV cache"
    if isinstance(hardware, CpuFacts):
        lead = f"{what} lack {missing} of memory ({hardware.origin})"
    else:
        where = f"{lack.ranks} x {hardware.memory_mib} MiB (compute capability {hardware.capability})"
        lead = f"{where} lack {missing} per GPU for {what}"
    advice = _smallest_change(request, lack)
    if isinstance(hardware, CpuFacts) or request.world_sizes is None:
        return NoPlan("NoFit", f"{lead}. {advice}")
    limit = _runtime_limit(request)
    larger, _ = _search(dataclasses.replace(request, gpus_per_replica=None, world_sizes=None))
    if isinstance(larger, Plan):
        return NoPlan(UNSUPPORTED_SIZE, f"{lead}. {larger.ranks} GPUs would hold it, but {limit}. {advice}")
    return NoPlan("NoFit", f"{lead}; {limit}. {advice}")


def _smallest_change(request: PlanRequest, lack: Lack) -> str:
    """The first change, from small to large, with which a plan exists; each is tried out, not guessed."""
    for change, advice in _changes(request, lack):
        try:
            outcome, _ = _search(change)
        except PrecisionRefused:
            continue
        if isinstance(outcome, Plan):
            return (
                f"It fits ({outcome.precision.summary}, {outcome.max_model_len:,} tokens of context) when you {advice}."
            )
    if isinstance(request.hardware, CpuFacts):
        return "Use a node with more memory, raise the pool's limit, or choose a smaller model."
    need = request.hardware.memory_mib + -(-lack.missing_bytes // MIB)
    more_gpus = " nodes with more GPUs," if request.world_sizes is None else ""
    return f"Use GPUs with at least {need:,} MiB each,{more_gpus} or a smaller model."


def _changes(request: PlanRequest, lack: Lack) -> list[tuple[PlanRequest, str]]:
    precision = request.precision
    changes: list[tuple[PlanRequest, str]] = []
    fitting = lack.fitting_tokens // DEFAULT_PAGE_SIZE * DEFAULT_PAGE_SIZE
    if request.max_model_len is not None and fitting >= SHORTEST_ADVISED_CONTEXT:
        advice = f"set context.maxModelLen to at most {fitting}"
        changes.append((dataclasses.replace(request, max_model_len=fitting), advice))
    if precision.kv is not None:
        wider = dataclasses.replace(precision, kv=None)
        changes.append((dataclasses.replace(request, precision=wider), "set precision.kvCache: Auto"))
    if precision.conversion is Conversion.NEVER:
        wider = dataclasses.replace(precision, conversion=Conversion.ALLOWED)
        changes.append((dataclasses.replace(request, precision=wider), "set precision.conversion: Allowed"))
    if precision.weights is not None:
        wider = dataclasses.replace(precision, weights=None, conversion=Conversion.ALLOWED)
        changes.append((dataclasses.replace(request, precision=wider), "set precision.weights: Auto"))
    if request.gpus_per_replica is not None:
        free = dataclasses.replace(request, gpus_per_replica=None)
        changes.append((free, "leave out pools[].gpusPerReplica or raise it"))
    return changes
