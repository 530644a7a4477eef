"""ModelFacts of a checkpoint, from config.json and the headers of its weight files; no weight is read, no torch needed.

Config and tensors are two witnesses of one model: where they contradict each other the checkpoint is refused here, in
a second and on any node, and not an hour later on eight GPUs.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from octavo_runtime.contract.facts import ExpertFacts, ModelFacts, ParameterFacts
from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.architecture import Architecture, architecture_of, invalid, read_config
from octavo_runtime.loading.files import CONFIG, INDEX, CheckpointFiles, LocalFiles
from octavo_runtime.loading.headers import (
    HEADERS_LIMIT_BYTES,
    FileHeader,
    TensorHeader,
    corrupt,
    read_header,
    weight_files,
    weight_map,
)
from octavo_runtime.loading.stored_format import StoredFormat, logical_elements, quantisation_of, stored_format_of

READERS = 8
"""Headers read at once: one hub request takes about 100 ms, a large checkpoint has up to 200 files."""

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EXPERT = re.compile(r"(?:^|\.)layers\.(?P<layer>\d+)\.(?:mlp|block_sparse_moe)\.experts\.(?:(?P<expert>\d+)\.)?")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|lm_head|shared_head\.head)\.weight$")
_OUTPUT_HEAD = "lm_head.weight"
_LINEAR = re.compile(r"_proj\.")


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
    raw_config, config = read_config(files)
    architecture = architecture_of(config)
    headers = _read_headers(files)
    tensors = [tensor for header in headers.values() for tensor in header.tensors]
    _check_index(weight_map(files), tensors)
    expert_layers = _expert_layers(architecture, tensors)
    _check_layers(architecture, tensors)
    stored = stored_format_of(_representative(architecture, tensors), quantisation_of(files, config))
    experts = None
    if architecture.experts is not None:
        experts = ExpertFacts(
            count=architecture.experts.count,
            per_token=architecture.experts.per_token,
            intermediate_size=architecture.experts.intermediate_size,
            layers=expert_layers,
        )
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
        parameters=_count(architecture, tensors),
        checkpoint_bytes=sum(tensor.storage_bytes for tensor in tensors),
    )
    return Checkpoint(facts, stored)


def _read_headers(files: CheckpointFiles) -> Mapping[str, FileHeader]:
    names = weight_files(files)
    headers: dict[str, FileHeader] = {}
    total = 0
    with ThreadPoolExecutor(max_workers=min(READERS, len(names))) as readers:
        try:
            for name, header in zip(names, readers.map(lambda name: read_header(files, name), names), strict=True):
                total += len(header.raw)
                if total > HEADERS_LIMIT_BYTES:
                    raise corrupt(name, f"all headers up to this one exceed {HEADERS_LIMIT_BYTES} bytes")
                headers[name] = header
        except Refused:
            readers.shutdown(wait=False, cancel_futures=True)
            raise
    return headers


def _check_index(index: Mapping[str, str], tensors: Iterable[TensorHeader]) -> None:
    if not index:
        return
    found = {tensor.name: tensor.file for tensor in tensors}
    for name, file in index.items():
        if found.get(name) != file:
            raise corrupt(file, f"lacks tensor {name}, which {INDEX} says it holds")


def _expert_of(tensor: TensorHeader) -> tuple[int, int | None] | None:
    """(layer, expert) of a routed expert's tensor; expert is None when one tensor holds all of a layer's."""
    match = _EXPERT.search(tensor.name)
    if match is None:
        return None
    return int(match["layer"]), None if match["expert"] is None else int(match["expert"])


def _expert_layers(architecture: Architecture, tensors: Iterable[TensorHeader]) -> int:
    """Decoder layers with routed experts; raises Refused when they are not the ones that config.json announces."""
    separate: dict[int, set[int]] = defaultdict(set)
    fused: dict[int, int] = {}
    for tensor in tensors:
        place = _expert_of(tensor)
        if place is None or place[0] >= architecture.layers:
            continue
        layer, expert = place
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


def _check_layers(architecture: Architecture, tensors: Iterable[TensorHeader]) -> None:
    seen = {int(match[1]) for tensor in tensors if (match := _LAYER.search(tensor.name))}
    missing = set(range(architecture.layers)) - seen
    if missing:
        raise invalid(
            f"{CONFIG}: num_hidden_layers is {architecture.layers}, but the checkpoint holds no tensor of layer "
            f"{min(missing)}"
        )


def _representative(architecture: Architecture, tensors: Iterable[TensorHeader]) -> Iterator[TensorHeader]:
    """The tensors whose format is the checkpoint's: routed experts of the decoder, or linear layers without experts.

    Layers past the decoder's (multi-token prediction) are often left unquantised and do not count.
    """
    for tensor in tensors:
        layer = _LAYER.search(tensor.name)
        if layer is None or int(layer[1]) >= architecture.layers:
            continue
        pattern = _LINEAR if architecture.experts is None else _EXPERT
        if pattern.search(tensor.name) and not tensor.name.endswith((".bias", "_bias")):
            yield tensor


def _count(architecture: Architecture, tensors: Iterable[TensorHeader]) -> ParameterFacts:
    experts = embeddings = other = 0
    for tensor in tensors:
        if _EMBEDDING.search(tensor.name):
            if architecture.tied_embeddings and tensor.name.endswith(_OUTPUT_HEAD):
                continue
            embeddings += tensor.elements
        elif _EXPERT.search(tensor.name):
            experts += logical_elements(tensor)
        else:
            other += logical_elements(tensor)
    return ParameterFacts(routed_experts=experts, embeddings=embeddings, other=other)


def _content_hash(config: bytes, headers: Mapping[str, FileHeader]) -> str:
    digest = hashlib.sha256()
    for name, content in [(CONFIG, config), *((name, header.raw) for name, header in sorted(headers.items()))]:
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return f"sha256:{digest.hexdigest()}"
