"""Where a checkpoint's files are read from: a local directory here, a hub by range requests in `hub.py`.

Reading facts needs the first kilobytes of each file and no more, so the seam is "list names with sizes, read a range".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from octavo_runtime.contract.refused import Refused

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SAFETENSORS = ".safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Suffixes of pickled weights, which can run code when they are opened; Octavo never opens them."""

FILES_LIMIT = 4096
"""Files of a checkpoint directory; the largest published checkpoints have about 200."""


class CheckpointFiles(Protocol):
    """The top-level files of one checkpoint."""

    @property
    def where(self) -> str:
        """What to call the checkpoint in a sentence: its path or address."""
        ...

    @property
    def readers(self) -> int:
        """How many ranges are worth reading at once."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """File name -> bytes, top level only."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes:
        """At most `length` bytes from offset `start`; fewer only at the end of the file. Raises Refused."""
        ...


class LocalFiles:
    """A directory on disk. Links are followed: a hub's cache and an image volume consist of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sizes = _sizes_of(path)

    @property
    def where(self) -> str:
        """The directory's path."""
        return str(self.path)

    @property
    def readers(self) -> int:
        """One: parsing dominates, and threads only take the interpreter from each other."""
        return 1

    def sizes(self) -> Mapping[str, int]:
        """File name -> bytes, as found when this object was made."""
        return self._sizes

    def read(self, name: str, start: int, length: int) -> bytes:
        """Part of a file; raises Refused `CheckpointUnreadable` when the system will not read it."""
        try:
            with (self.path / name).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise Refused("CheckpointUnreadable", f"cannot read {self.path / name}: {error.strerror}") from error


def _sizes_of(path: Path) -> dict[str, int]:
    if not path.exists():
        raise Refused(
            "SourceNotFound", f"no such directory: {path}; give the directory that holds {CONFIG} and the weights"
        )
    if not path.is_dir():
        raise Refused("SourceNotFound", f"{path} is a file; give the directory that holds {CONFIG} and the weights")
    sizes: dict[str, int] = {}
    try:
        for entry in path.iterdir():
            if entry.is_file():
                sizes[entry.name] = entry.stat().st_size
            if len(sizes) > FILES_LIMIT:
                raise Refused("SourceNotFound", f"{path} holds over {FILES_LIMIT} files and is no checkpoint directory")
    except OSError as error:
        raise Refused("CheckpointUnreadable", f"cannot list {path}: {error.strerror}") from error
    return sizes
