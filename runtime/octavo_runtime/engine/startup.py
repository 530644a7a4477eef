"""From settings to an engine that answers: probe, choose, size, load, warm. Each stage says what it found."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import torch

from octavo_kernels.catalogue import Operations, ReferenceNotAllowed, operations_for
from octavo_kernels.device import Device
from octavo_kernels.registry import Formats, NoImplementation, Shapes
from octavo_runtime.contract.footprint import INT4_GROUP_SIZE, bytes_for_tokens, weight_bytes
from octavo_runtime.contract.parallel import ParallelLayout, require_bundled_world_size
from octavo_runtime.contract.precision import KvFormat, PrecisionChoice, PrecisionRequest, choose_precision
from octavo_runtime.contract.refused import Refused
from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.buffers import StepBuffers
from octavo_runtime.engine.device import DeviceFacts, check_expected, probe, resident_bytes
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.executor import LocalExecutor
from octavo_runtime.engine.fault_kinds import FaultKind
from octavo_runtime.engine.faults import FaultInjector
from octavo_runtime.engine.graphs import CudaCapture, DecodeGraphs, buckets_up_to
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.messages import KernelChoice, MemoryLine, Sampling, Started, Submit
from octavo_runtime.engine.process import Report
from octavo_runtime.engine.schedule import SchedulerLimits
from octavo_runtime.engine.scheduler import Scheduler
from octavo_runtime.engine.settings import EngineSettings
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.capacity import KvCapacity, kv_capacity
from octavo_runtime.kv.holding import Nonces
from octavo_runtime.kv.manager import KvManager
from octavo_runtime.kv.pool import PagePool
from octavo_runtime.kv.prefix import PrefixCache, PrefixEpoch
from octavo_runtime.loading.load import load_model
from octavo_runtime.models.base import Model

KV_SHARE_OF_AVAILABLE = 0.5
"""Without --kv-cache-memory-bytes the pool takes at most this share of the memory that the weights leave free: enough
for a workstation, without starving what else runs there. The operator always passes the planned figure."""

WARM_TOKENS = 2
WARM_STEPS_LIMIT = 1000
"""A warm-up takes a handful of steps; beyond this the engine does not make progress."""


Instrument = Callable[[Operations], Operations]


def unchanged(operations: Operations) -> Operations:
    """The kernels as they were chosen."""
    return operations


def start_engine(
    settings: EngineSettings, report: Report, instrument: Instrument = unchanged
) -> tuple[Engine, Started]:
    """Load the model and warm it; raises Refused with what is wrong and what to do.

    `instrument` may wrap the chosen kernels before the model gets them.
    """
    device = probe()
    report("device", f"{device.name}, {device.memory_bytes >> 20} MiB, {device.available_bytes >> 20} MiB free")
    check_expected(device, settings.expect_compute_capability, settings.expect_memory_mib)
    layout = settings.layout()
    request = PrecisionRequest(weights=settings.weights, kv=settings.kv_cache)
    precision = choose_precision(device.capability, settings.facts.format, request)
    report("precision", f"weights {precision.weights} ({precision.weights_reason})")
    report("precision", f"KV cache {precision.kv} ({precision.kv_reason})")
    capacity = _capacity(settings, layout, precision, device)
    report("kv", capacity.derivation)
    max_model_len = _max_model_len(settings, capacity)

    torch_device = torch.device(device.torch_device)
    operations = instrument(_kernels(torch_device, precision, settings))
    faults = FaultInjector(settings.faults, secrets.randbits(32)) if settings.faults else None
    if faults is not None:
        faults.active = False  # the warm-up is a self-test
        operations = faults.instrument(operations)
    report("kernels", _summary(operations))
    before = resident_bytes(device)
    model = load_model(
        settings.model,
        settings.facts,
        layout,
        precision.weights,
        torch_device,
        lambda detail: report("load", detail),
        operations,
    )
    loaded = resident_bytes(device)
    cache = KvCache.allocate(
        settings.facts,
        layout,
        precision.kv,
        capacity.num_pages,
        settings.page_size,
        torch_device,
        settings.kv_scaling,
    )
    cache.commit()
    engine = build_engine(settings, model, cache, operations, max_model_len, torch_device, faults)
    report("warm", "running a prompt and a token through every kernel")
    started_at = time.monotonic()
    warm(engine, settings, max_model_len)
    report("warm", f"done in {time.monotonic() - started_at:.1f} s")
    if faults is not None:
        faults.active = True
        report("faults", f"planted on purpose: {', '.join(f'{plan.kind}:{plan.rate:g}' for plan in settings.faults)}")
    memory = [
        MemoryLine("weights", weight_bytes(settings.facts, precision.weights, layout).total, loaded - before),
        MemoryLine("kv", capacity.storage_bytes, cache.storage_bytes),
    ]
    return engine, Started(
        weights=precision.weights,
        kv_cache=precision.kv,
        device=device.name,
        kv_tokens=capacity.tokens,
        kv_pages=capacity.num_pages,
        page_size=settings.page_size,
        max_model_len=max_model_len,
        kernels=[KernelChoice(choice.operation, choice.implementation) for choice in operations.choices],
        memory=memory,
    )


def _kernels(device: torch.device, precision: PrecisionChoice, settings: EngineSettings) -> Operations:
    """The kernels for this device; raises Refused with what speaks against each."""
    formats = Formats(precision.weights, precision.kv)
    try:
        return operations_for(
            Device.of(device), formats, shapes=_shapes(settings), allow_reference=settings.allow_reference
        )
    except ReferenceNotAllowed as error:
        raise Refused("OnlyReferenceKernels", f"{error}; --allow-reference runs it all the same, slowly") from error
    except NoImplementation as error:
        raise Refused("KernelsUnsupported", str(error)) from error


def _shapes(settings: EngineSettings) -> Shapes:
    facts, attention = settings.facts, settings.facts.attention
    return Shapes(
        head_dim=attention.head_dim,
        group=attention.heads // attention.kv_heads if attention.kv_heads else None,
        page_size=settings.page_size,
        hidden=facts.hidden_size,
        intermediate=facts.experts.intermediate_size if facts.experts else None,
        group_size=INT4_GROUP_SIZE,
    )


def _summary(operations: Operations) -> str:
    """Operations by implementation; `python -m octavo_kernels.explain` has the reasons."""
    by_implementation: dict[str, list[str]] = {}
    for choice in operations.choices:
        by_implementation.setdefault(choice.implementation, []).append(choice.operation)
    return "; ".join(f"{name}: {', '.join(done)}" for name, done in by_implementation.items())


def build_engine(
    settings: EngineSettings,
    model: Model,
    cache: KvCache,
    operations: Operations,
    max_model_len: int,
    device: torch.device,
    faults: FaultInjector | None = None,
) -> Engine:
    """An engine over a loaded model and an empty cache."""
    require_bundled_world_size(settings.tensor_parallel_size)
    prefix = None
    if settings.prefix_cache:
        epoch = PrefixEpoch(settings.facts.revision, cache.format, cache.page_size, settings.kv_scaling)
        prefix = PrefixCache(epoch)
    kv = KvManager(PagePool(cache.num_pages, cache.page_size), Nonces(secrets.randbits(32)), prefix)
    limits = SchedulerLimits(settings.max_num_seqs, max(settings.tokens_per_step, settings.max_num_seqs))
    graphs_wanted = device.type == "cuda" and settings.cuda_graphs and not settings.faults
    padded = graphs_wanted or any(plan.kind is FaultKind.PADDING_WRITE for plan in settings.faults)
    sizes = settings.pad_decode_to or (buckets_up_to(settings.max_num_seqs) if padded else ())
    builder = BatchBuilder(settings.max_num_seqs, sizes)
    digests = PageDigests(
        settings.digest_pages_per_step, cache.num_layers, cache.page_size, interval=settings.digest_interval
    )
    buffers = StepBuffers(
        builder.max_rows, max(limits.tokens_per_step, builder.max_rows), digests.pages_per_step, device
    )
    checks = settings.integrity is not IntegrityMode.OFF
    graphs = DecodeGraphs(sizes, CudaCapture()) if graphs_wanted else None
    executor = LocalExecutor(model, cache, operations, buffers, checks=checks, graphs=graphs)
    return Engine(Scheduler(limits, kv), builder, executor, settings.integrity, digests, faults=faults)


def warm(engine: Engine, settings: EngineSettings, max_model_len: int) -> None:
    """Run one request of a full step's length, so that the first user does not pay for compilation; two answers to it,
    so that pages are copied and digested, under a salt of its own, so that nobody shares what it leaves in the cache.

    It is a self-test as well: a violation here means that the check or the kernels are broken; raises Refused.
    """
    prompt = [0] * max(1, min(settings.tokens_per_step, max_model_len - WARM_TOKENS))
    greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
    answer = min(WARM_TOKENS, max_model_len)
    engine.submit(Submit("warm-up", prompt, answer, greedy, [], n=2, cache_salt="warm-up"))
    for _ in range(WARM_STEPS_LIMIT):
        result = engine.step()
        if result.violations:
            reasons = ", ".join(result.violations[0].reasons)
            raise Refused("IntegritySelfTestFailed", f"the warm-up request failed the KV integrity check ({reasons})")
        if engine.idle:
            return
    raise Refused("WarmUpFailed", f"the warm-up request did not end within {WARM_STEPS_LIMIT} steps")


def _capacity(
    settings: EngineSettings, layout: ParallelLayout, precision: PrecisionChoice, device: DeviceFacts
) -> KvCapacity:
    weights = weight_bytes(settings.facts, precision.weights, layout).total
    spare = device.available_bytes - weights
    budget = settings.kv_cache_memory_bytes
    if spare < (budget or 0):
        pool = "" if budget is None else f" and the KV pool {budget} (--kv-cache-memory-bytes)"
        raise Refused(
            "NotEnoughMemory",
            f"{precision.weights} weights take {weights} bytes{pool}, but {device.name} has {device.available_bytes} "
            f"of {device.memory_bytes} bytes available",
            retryable=True,
        )
    if budget is None:
        budget = min(int(spare * KV_SHARE_OF_AVAILABLE), _most_useful_bytes(settings, layout, precision.kv))
    return kv_capacity(settings.facts, precision.kv, layout, budget, settings.page_size, settings.kv_scaling)


def _most_useful_bytes(settings: EngineSettings, layout: ParallelLayout, kv: KvFormat) -> int:
    """KV bytes with which every batch slot holds a full context: more would never be used."""
    length = settings.max_model_len or settings.facts.max_position_embeddings
    pages = -(-length // settings.page_size) * settings.max_num_seqs
    tokens = pages * settings.page_size
    return bytes_for_tokens(tokens, settings.facts, kv, layout, settings.page_size, settings.kv_scaling)


def _max_model_len(settings: EngineSettings, capacity: KvCapacity) -> int:
    asked, limit = settings.max_model_len, settings.facts.max_position_embeddings
    if asked is None:
        return min(limit, capacity.tokens)
    if asked > capacity.tokens:
        raise Refused(
            "KvPoolTooSmall",
            f"--max-model-len {asked} does not fit the KV pool of {capacity.tokens} tokens ({capacity.derivation}); "
            f"lower it or raise --kv-cache-memory-bytes",
        )
    return asked
