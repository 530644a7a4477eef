"""The weights of a checkpoint on disk, handed out tensor by tensor; each must be asked for, or ignored by a rule.

Headers are read and checked by `headers.py` before any weight. A tensor is then read straight into its own memory:
not mapped, because a file that shrinks under a mapping kills the process, while a short read is an error that can name
the file. At any time only the tensors that the caller still holds are in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.files import LocalFiles
from octavo_runtime.loading.headers import TensorHeader, corrupt, find_weights, read_header

PLAIN_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
"""Safetensors spellings of the unquantised formats."""

OPEN_FILES = 8
"""Shards kept open; a layer lies in one or two of them."""


class OpenCheckpoint:
    """A checkpoint directory being loaded; a context manager that closes its files.

    `progress` is told the bytes read so far after each tensor.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None) -> None:
        files = LocalFiles(path)
        self._path = path
        self._progress = progress
        self._tensors: dict[str, TensorHeader] = {}
        self._data_start: dict[str, int] = {}
        self._open: dict[str, BufferedReader] = {}
        self._stack = ExitStack()
        self._left: set[str] = set()
        for file in find_weights(files).files:
            header = read_header(files, file)
            self._data_start[file] = files.sizes()[file] - sum(t.storage_bytes for t in header.tensors)
            for tensor in header.tensors:
                if tensor.name in self._tensors:
                    other = self._tensors[tensor.name].file
                    raise corrupt(file, f"holds tensor {tensor.name}, which {other} holds as well")
                self._tensors[tensor.name] = tensor
        self._left = set(self._tensors)
        self.bytes_total = sum(tensor.storage_bytes for tensor in self._tensors.values())
        self.bytes_read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()
        self._stack.close()

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return name in self._tensors

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Read one tensor as bfloat16 in host memory and count it as used.

        FP16 and FP32 are rounded to nearest even. Raises Refused `TensorMissing`, `TensorShapeWrong`,
        `WeightsUnsupported` for other dtypes, or `CheckpointCorrupt`.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise Refused(
                "TensorMissing",
                f"{self._path} holds no tensor {name}, which config.json makes necessary; copy the checkpoint again, "
                f"or compare config.json with the model's published one",
            )
        if tensor.shape != tuple(shape):
            raise Refused(
                "TensorShapeWrong",
                f"{tensor.file}: tensor {name} has shape {list(tensor.shape)}, config.json makes it {list(shape)}; "
                f"weights and config.json are of different models",
            )
        if tensor.dtype not in PLAIN_DTYPES:
            raise Refused(
                "WeightsUnsupported",
                f"{tensor.file}: tensor {name} is {tensor.dtype}; this version of the bundled runtime loads "
                f"{', '.join(PLAIN_DTYPES)}",
            )
        self._left.discard(name)
        values = self._read(tensor)
        return values.to(torch.bfloat16)

    def finish(self, ignored: Iterable[str]) -> None:
        """Account for every tensor: raises Refused `TensorUnexpected` for one neither used nor ignored.

        `ignored` are regular expressions that match whole names.
        """
        rules = [re.compile(rule) for rule in ignored]
        unexpected = sorted(name for name in self._left if not any(rule.fullmatch(name) for rule in rules))
        if unexpected:
            first = self._tensors[unexpected[0]]
            raise Refused(
                "TensorUnexpected",
                f"{first.file}: tensor {first.name} has no place in this model ({len(unexpected)} such tensors); the "
                f"answer would be wrong without it, so nothing is served: is config.json the right one?",
            )

    def _read(self, tensor: TensorHeader) -> torch.Tensor:
        values = torch.empty(tensor.shape, dtype=PLAIN_DTYPES[tensor.dtype])
        memory = values.view(-1).view(torch.uint8).numpy().data
        try:
            file = self._file(tensor.file)
            file.seek(self._data_start[tensor.file] + tensor.begin)
            read = file.readinto(memory)
        except OSError as error:
            raise Refused(
                "CheckpointUnreadable", f"cannot read {self._path / tensor.file}: {error.strerror}"
            ) from error
        if read != tensor.storage_bytes:
            raise corrupt(tensor.file, f"truncated while it was read: {tensor.name} ends after {read} bytes")
        self.bytes_read += tensor.storage_bytes
        if self._progress is not None:
            self._progress(self.bytes_read)
        return values

    def _file(self, name: str) -> BufferedReader:
        file = self._open.get(name)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            file = self._stack.enter_context((self._path / name).open("rb"))
            self._open[name] = file
        return file
