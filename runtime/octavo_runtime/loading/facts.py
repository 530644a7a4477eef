"""ModelFacts of a checkpoint, from config.json and the headers of its weight files; no weight is read, no torch needed.

Config and tensors are two witnesses of one model: where they contradict each other the checkpoint is refused here, in
a second and on any node, and not an hour later on eight GPUs.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from octavo_runtime.contract.facts import ExpertFacts, ModelFacts, ParameterFacts
from octavo_runtime.loading.architecture import Architecture, architecture_of, invalid, read_config
from octavo_runtime.loading.files import CONFIG, INDEX, CheckpointFiles, LocalFiles
from octavo_runtime.loading.headers import (
    HEADERS_LIMIT_BYTES,
    FileHeader,
    TensorHeader,
    corrupt,
    find_weights,
    read_header,
)
from octavo_runtime.loading.naming import Placed, place
from octavo_runtime.loading.stored_format import StoredFormat, logical_elements, quantisation_of, stored_format_of

_LINEAR = "_proj."
"""Part of every linear layer's name in the dense families."""


@dataclass(frozen=True)
class Checkpoint:
    """What was read: the facts, and how the experts (of a dense model: the linear layers) are packed."""

    facts: ModelFacts
    stored: StoredFormat


def read_facts(path: Path) -> ModelFacts:
    """Facts of the checkpoint in directory `path`; raises Refused with a reason and what to do."""
    return read_checkpoint(LocalFiles(path)).facts


def read_checkpoint(files: CheckpointFiles, revision: str | None = None) -> Checkpoint:
    """Facts and packing of a checkpoint anywhere.

    `revision` is the commit it was resolved to; without one it is `sha256:` over config and tensor headers, which
    changes with any shape, name, dtype or setting, but not with the weights' values. Raises Refused.
    """
    with _collector_paused():
        return _read_checkpoint(files, revision)


def _read_checkpoint(files: CheckpointFiles, revision: str | None) -> Checkpoint:
    raw_config, config = read_config(files)
    architecture = architecture_of(config)
    weights = find_weights(files)
    headers = _read_headers(files, weights.files)
    tensors = [tensor for header in headers.values() for tensor in header.tensors]
    _check_names(weights.promised, tensors)
    placed = list(place(tensors))
    _check_layers(architecture, placed)
    expert_layers = _expert_layers(architecture, placed)
    stored = stored_format_of(_representative(architecture, placed), quantisation_of(files, config))
    experts = None
    if architecture.experts is not None:
        experts = ExpertFacts(
            count=architecture.experts.count,
            per_token=architecture.experts.per_token,
            intermediate_size=architecture.experts.intermediate_size,
            layers=expert_layers,
        )
    try:
        facts = ModelFacts(
            architecture=architecture.name,
            revision=revision or _content_hash(raw_config, headers),
            layers=architecture.layers,
            hidden_size=architecture.hidden_size,
            vocab_size=architecture.vocab_size,
            max_position_embeddings=architecture.max_position_embeddings,
            attention=architecture.attention,
            experts=experts,
            format=stored.format,
            group_size=stored.group_size,
            parameters=_count(architecture, placed),
            checkpoint_bytes=sum(tensor.storage_bytes for tensor in tensors),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid(f"{'.'.join(map(str, first['loc']))} of the checkpoint: {first['msg']}") from error
    return Checkpoint(facts, stored)


def _read_headers(files: CheckpointFiles, names: Sequence[str]) -> Mapping[str, FileHeader]:
    headers: dict[str, FileHeader] = {}
    total = 0
    readers = ThreadPoolExecutor(max_workers=files.readers)
    try:
        for name, header in zip(names, readers.map(lambda name: read_header(files, name), names), strict=True):
            total += len(header.raw)
            if total > HEADERS_LIMIT_BYTES:
                raise corrupt(name, f"all headers up to this one exceed {HEADERS_LIMIT_BYTES} bytes")
            headers[name] = header
    finally:
        readers.shutdown(wait=True, cancel_futures=True)
    return headers


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No cyclic collection meanwhile: 200,000 tuples that stay would be walked again and again, half of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _check_names(promised: Mapping[str, str], tensors: Iterable[TensorHeader]) -> None:
    """Each tensor is in one file, and in the one that the index says."""
    found: dict[str, str] = {}
    for tensor in tensors:
        other = found.setdefault(tensor.name, tensor.file)
        if other != tensor.file:
            raise corrupt(tensor.file, f"holds tensor {tensor.name}, which {other} holds as well")
    for name, file in promised.items():
        if found.get(name) != file:
            raise corrupt(file, f"lacks tensor {name}, which {INDEX} says it holds")


def _expert_layers(architecture: Architecture, placed: Iterable[Placed]) -> int:
    """Decoder layers with routed experts; raises Refused when they are not the ones that config.json announces."""
    separate: dict[int, set[int]] = defaultdict(set)
    fused: dict[int, int] = {}
    for tensor, layer, routed, expert in placed:
        if not routed or layer is None or layer >= architecture.layers:
            continue
        if expert is not None:
            separate[layer].add(expert)
        elif tensor.shape:
            fused[layer] = tensor.shape[0]
    experts = architecture.experts
    if experts is None:
        if separate or fused:
            raise invalid(f"{CONFIG}: {architecture.name} is a dense model but the checkpoint holds routed experts")
        return 0
    counts = fused | {layer: len(seen) for layer, seen in separate.items()}
    if not counts:
        raise invalid(f"{CONFIG}: {architecture.name} has {experts.count} experts, the checkpoint holds none")
    for layer, count in sorted(counts.items()):
        if count != experts.count:
            raise invalid(
                f"{CONFIG}: {experts.count} experts are announced, layer {layer} of the checkpoint holds {count}"
            )
    return len(counts)


def _check_layers(architecture: Architecture, placed: Iterable[Placed]) -> None:
    seen = {item.layer for item in placed}
    missing = next(layer for layer in itertools.count() if layer not in seen)
    if missing < architecture.layers:
        raise invalid(
            f"{CONFIG}: num_hidden_layers is {architecture.layers}, but the checkpoint holds no tensor of layer "
            f"{missing}"
        )


def _representative(architecture: Architecture, placed: Iterable[Placed]) -> Iterator[Placed]:
    """The tensors whose format is the checkpoint's: routed experts of the decoder, or linear layers without experts.

    Layers past the decoder's (multi-token prediction) are often left unquantised and do not count.
    """
    for item in placed:
        if item.layer is None or item.layer >= architecture.layers:
            continue
        chosen = item.routed if architecture.experts is not None else _LINEAR in item.tensor.name
        if chosen and not item.leaf.endswith("bias"):
            yield item


def _count(architecture: Architecture, placed: Iterable[Placed]) -> ParameterFacts:
    experts = embeddings = other = 0
    for item in placed:
        if item.routed:
            experts += logical_elements(item)
        elif not item.is_embedding:
            other += logical_elements(item)
        elif not (architecture.tied_embeddings and item.is_output_head):
            embeddings += item.tensor.elements
    return ParameterFacts(routed_experts=experts, embeddings=embeddings, other=other)


def _content_hash(config: bytes, headers: Mapping[str, FileHeader]) -> str:
    digest = hashlib.sha256()
    for name, content in [(CONFIG, config), *((name, header.raw) for name, header in sorted(headers.items()))]:
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return f"sha256:{digest.hexdigest()}"
