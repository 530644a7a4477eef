"""The training text: the reStructuredText sources of Python's documentation, as Debian packages them (PSF licence)."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .recipe import DEBIAN_PACKAGE, HELD_OUT_FILES

DOWNLOAD_TIMEOUT_SECONDS = 300
UNPACK_TIMEOUT_SECONDS = 120
HELD_OUT_BYTES = range(4_000, 60_000)
"""Only files of this size are held out: small ones say little, large ones would take a tenth of the text away."""


class CorpusError(Exception):
    """The documentation could not be fetched or is not what the recipe expects; the message says what to do."""


@dataclass(frozen=True)
class Document:
    """One source file; ``path`` is relative to the documentation's ``_sources`` folder."""

    path: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents for training and the held-out ones, each sorted by path."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]


def fetch(cache: Path) -> Path:
    """Download and unpack the Debian package under ``cache`` (no root needed); returns the ``_sources`` folder.

    Raises CorpusError when apt or dpkg is missing, fails or takes too long.
    """
    unpacked = cache / DEBIAN_PACKAGE
    if not unpacked.is_dir():
        for tool in ("apt-get", "dpkg"):
            if shutil.which(tool) is None:
                raise CorpusError(f"{tool} not found: the training text is the Debian package {DEBIAN_PACKAGE}")
        cache.mkdir(parents=True, exist_ok=True)
        packages = sorted(cache.glob(f"{DEBIAN_PACKAGE}_*.deb"))
        if not packages:
            _call(["apt-get", "download", DEBIAN_PACKAGE], cache, DOWNLOAD_TIMEOUT_SECONDS)
            packages = sorted(cache.glob(f"{DEBIAN_PACKAGE}_*.deb"))
        partial = cache / f"{DEBIAN_PACKAGE}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        _call(["dpkg", "-x", str(packages[-1]), str(partial)], cache, UNPACK_TIMEOUT_SECONDS)
        partial.rename(unpacked)
    sources = unpacked / "usr/share/doc/python3.11/html/_sources"
    if not sources.is_dir():
        raise CorpusError(f"{sources} is missing: delete {unpacked} and try again")
    return sources


def read(sources: Path) -> Corpus:
    """Read every source once (symbolic links are not followed) and split it; the split depends on paths alone."""
    documents = []
    for path in sorted(sources.rglob("*.txt")):
        if path.is_symlink() or not path.is_file():
            continue
        name = path.relative_to(sources).as_posix()
        documents.append(Document(name, path.read_text(encoding="utf-8", errors="replace")))
    candidates = [d for d in documents if len(d.text.encode()) in HELD_OUT_BYTES]
    if len(candidates) < 2 * HELD_OUT_FILES:
        raise CorpusError(f"only {len(candidates)} usable files under {sources}: is {DEBIAN_PACKAGE} complete?")
    candidates.sort(key=lambda d: hashlib.sha256(d.path.encode()).hexdigest())
    held_out = {d.path for d in candidates[:HELD_OUT_FILES]}
    return Corpus(
        train=tuple(d for d in documents if d.path not in held_out),
        held_out=tuple(d for d in documents if d.path in held_out),
    )


def _call(command: list[str], folder: Path, timeout_seconds: int) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise CorpusError(f"{' '.join(command)} took more than {timeout_seconds} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise CorpusError(f"{' '.join(command)} failed ({last}); does `apt-get update` work?")
