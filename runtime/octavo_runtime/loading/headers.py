"""Safetensors headers: which tensors a checkpoint holds, read and checked without touching a single weight.

A file is `u64 length (little endian) | JSON header | data`; the header maps each name to dtype, shape and offsets into
data, which tile it without gaps (https://huggingface.co/docs/safetensors, section Format). Everything here is hostile
input: sizes are checked before they are allocated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import msgspec

from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.files import INDEX, PICKLES, SAFETENSORS, SINGLE, CheckpointFiles

HEADER_LIMIT_BYTES = 100_000_000
"""The format's own limit; Kimi K2.6, with 69,000 expert tensors and their scales, needs about 30 MB over all files."""

HEADERS_LIMIT_BYTES = 1_000_000_000
"""All headers of one checkpoint together, so that thousands of large headers do not exhaust a small pod."""

INDEX_LIMIT_BYTES = 100_000_000

LENGTH_BYTES = 8

FIRST_READ_BYTES = 256 * 1024
"""Length and header in one request for most files of a hub."""

PICKLE_MAGICS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
"""Looked at only when the length is impossible: a sound file may have a header of 0x0280 bytes."""

LFS_POINTER_MAGIC = b"version https://git-lfs"

DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors$")


class TensorHeader(NamedTuple):
    """One tensor: where it is and what it looks like."""

    name: str
    dtype: str
    """Safetensors spelling, e.g. BF16, F8_E4M3, I32."""
    shape: tuple[int, ...]
    begin: int
    """Offset of the first byte in the file's data section."""
    end: int
    file: str

    @property
    def storage_bytes(self) -> int:
        """Bytes in the file."""
        return self.end - self.begin

    @property
    def elements(self) -> int:
        """Stored elements; a packed format keeps several weights in one."""
        return math.prod(self.shape)


_BEGIN, _END = TensorHeader._fields.index("begin"), TensorHeader._fields.index("end")


class FileHeader(NamedTuple):
    """A file's raw header and what it says."""

    raw: bytes
    tensors: tuple[TensorHeader, ...]


def corrupt(file: str, what: str) -> Refused:
    """The refusal of a damaged weight file."""
    return Refused("CheckpointCorrupt", f"{file}: {what}; copy the file again from its source")


class Weights(NamedTuple):
    """Where a checkpoint's weights are."""

    files: tuple[str, ...]
    """File names, sorted."""
    promised: Mapping[str, str]
    """Tensor name -> file name from the index; empty for a checkpoint without one."""


def find_weights(files: CheckpointFiles) -> Weights:
    """The files that hold the weights; raises Refused when there are none or one is missing.

    The index decides where there is one: some repositories carry the weights twice in different layouts.
    """
    sizes = files.sizes()
    index = _read_index(files) if INDEX in sizes else {}
    if index:
        wanted = sorted(set(index.values()))
    elif SINGLE in sizes:
        wanted = [SINGLE]
    else:
        wanted = _numbered(sorted(name for name in sizes if name.endswith(SAFETENSORS)))
    if not wanted:
        raise _no_weights(files)
    missing = [name for name in wanted if name not in sizes]
    if missing:
        raise Refused(
            "ShardMissing",
            f"{files.where} lacks {len(missing)} of {len(wanted)} weight files, the first is {missing[0]}; "
            f"copy the checkpoint again from its source",
        )
    return Weights(tuple(wanted), index)


def _read_index(files: CheckpointFiles) -> Mapping[str, str]:
    size = files.sizes()[INDEX]
    if size > INDEX_LIMIT_BYTES:
        raise corrupt(INDEX, f"{size} bytes are more than the limit of {INDEX_LIMIT_BYTES}")
    try:
        document = msgspec.json.decode(files.read(INDEX, 0, size))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(INDEX, f"not JSON ({error})") from error
    entries = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise corrupt(INDEX, "has no weight_map that says which file holds which tensor")
    for tensor, file in entries.items():
        if not isinstance(file, str) or "/" in file or not file.endswith(SAFETENSORS):
            raise corrupt(INDEX, f"weight_map puts {tensor} into {file!r}, which is no {SAFETENSORS} file beside it")
    return entries


def read_header(files: CheckpointFiles, name: str) -> FileHeader:
    """Read and check one file's header; raises Refused `CheckpointCorrupt` naming the file and what is wrong."""
    size = files.sizes()[name]
    start = files.read(name, 0, min(size, FIRST_READ_BYTES))
    if len(start) < LENGTH_BYTES:
        raise corrupt(name, f"truncated: {size} bytes, a safetensors file has at least {LENGTH_BYTES}")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    _check_length(name, start, length, size)
    raw = start[LENGTH_BYTES : LENGTH_BYTES + length]
    if len(raw) < length:
        raw += files.read(name, LENGTH_BYTES + len(raw), length - len(raw))
    if len(raw) < length:
        raise corrupt(name, f"truncated: the header ends after {len(raw)} of {length} bytes")
    return FileHeader(raw, parse_header(raw, size - LENGTH_BYTES - length, name))


def _check_length(name: str, start: bytes, length: int, size: int) -> None:
    if length <= HEADER_LIMIT_BYTES and length + LENGTH_BYTES <= size:
        return
    if start.startswith(PICKLE_MAGICS):
        raise Refused(
            "CheckpointCorrupt",
            f"{name}: a pickled PyTorch file under a safetensors name; pickles can run code and are never opened: "
            f"save the weights as safetensors",
        )
    if start.startswith(LFS_POINTER_MAGIC):
        raise corrupt(name, "a Git LFS pointer instead of the weights (run `git lfs pull` where it was cloned)")
    if length > HEADER_LIMIT_BYTES:
        raise corrupt(name, f"not safetensors: a header of {length} bytes, the format allows {HEADER_LIMIT_BYTES}")
    raise corrupt(name, f"truncated: the header alone has {length} bytes, the file {size}")


def parse_header(raw: bytes, data_bytes: int, file: str) -> tuple[TensorHeader, ...]:
    """Tensors of one header in the order of their offsets, checked against the `data_bytes` that follow it."""
    try:
        entries = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(file, f"not safetensors: the header is not JSON ({error})") from error
    if not isinstance(entries, dict):
        raise corrupt(file, "not safetensors: the header is no JSON object")
    entries.pop("__metadata__", None)
    tensors = sorted((_tensor(name, entry, file) for name, entry in entries.items()), key=itemgetter(_BEGIN, _END))
    end = tensors[-1].end if tensors else 0
    if end > data_bytes:
        raise corrupt(
            file, f"truncated: {tensors[-1].name} ends at byte {end} of the data, the file has {data_bytes} of them"
        )
    if end < data_bytes:
        raise corrupt(file, f"{data_bytes - end} bytes follow the last tensor")
    if tensors and tensors[0].begin:
        raise corrupt(file, f"{tensors[0].begin} bytes come before the first tensor {tensors[0].name}")
    for before, after in pairwise(tensors):
        if before.end != after.begin:
            raise corrupt(file, f"{before.name} ends at byte {before.end} but {after.name} begins at {after.begin}")
    return tuple(tensors)


def _tensor(name: str, entry: object, file: str) -> TensorHeader:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[index]
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(file, f"tensor {name} has no dtype, shape and data_offsets") from error
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise corrupt(file, f"tensor {name} has the unknown dtype {dtype!r:.40}")
    if type(shape) is not list or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise corrupt(file, f"tensor {name} has the impossible shape {json.dumps(shape)[:80]}")
    size_bits = math.prod(shape) * bits
    if type(begin) is not int or type(end) is not int or begin < 0 or (end - begin) * 8 != size_bits:
        raise corrupt(
            file,
            f"tensor {name} of {dtype} {shape} needs {size_bits // 8} bytes, "
            f"its offsets are {begin!r:.40} and {end!r:.40}",
        )
    return TensorHeader(name, dtype, tuple(shape), begin, end, file)


def _numbered(names: list[str]) -> list[str]:
    """`names`, with the gaps of an `x-00001-of-00004` series filled in so that they are seen to be missing."""
    complete = set(names)
    for name in names:
        if series := _SHARD.match(name):
            count = int(series["count"])
            if count <= len(names) * 100:
                complete.update(f"{series['stem']}-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1))
    return sorted(complete)


def _no_weights(files: CheckpointFiles) -> Refused:
    pickles = sorted(name for name in files.sizes() if name.endswith(PICKLES))
    found = f" but pickled weights ({pickles[0]}), which can run code and are never opened" if pickles else ""
    return Refused(
        "WeightsMissing", f"{files.where} has no .safetensors file{found}; save or download the weights as safetensors"
    )
