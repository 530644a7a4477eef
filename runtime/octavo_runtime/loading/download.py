"""Copy one commit of a hub repository into a directory, once: resumable, locked, and marked when it is complete.

Only configuration, tokenizer and safetensors files are taken; pickles and code stay where they are. The marker is
written last and atomically, so a directory with a marker is whole, and a container that starts again does no work.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from huggingface_hub import hf_hub_download
from pydantic import ValidationError

from octavo_runtime.contract.facts import ContractModel
from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.files import CONFIG, INDEX, CheckpointFiles, LocalFiles
from octavo_runtime.loading.headers import corrupt, find_weights, read_header
from octavo_runtime.loading.hub import HubFiles, HubSource, patiently

MARKER = ".octavo-complete.json"
LOCK = ".octavo-fetch.lock"

LOCK_POLL_SECONDS = 1.0
LOCK_WAIT_LIMIT_SECONDS = 6 * 3600.0
"""How long one fetcher waits for another on a shared volume: a terabyte at 50 MB/s."""

WORKERS = 8
"""Files copied at once."""

SPACE_MARGIN_BYTES = 64 * 2**20
"""Free space asked for beyond the files themselves: markers, metadata, file system overhead."""

_SMALL_FILES = re.compile(
    r"^(?:config\.json|generation_config\.json|hf_quant_config\.json|tokenizer[\w.-]*\.(?:json|model)|vocab\.json|"
    r"merges\.txt|[\w.-]+\.tiktoken|special_tokens_map\.json|added_tokens\.json|chat_template\.(?:jinja|json)|"
    r"LICENSE[\w.-]*)$"
)

OnBytes = Callable[[int], None]


class CompleteMarker(ContractModel):
    """What a finished directory holds."""

    repo: str
    revision: str
    """The commit."""
    files: dict[str, int]
    """File name -> bytes."""


def completed(directory: Path) -> CompleteMarker | None:
    """The marker, when there is one and every file that it names is there with its size."""
    try:
        marker = CompleteMarker.model_validate_json((directory / MARKER).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    intact = all(_size(directory / name) == size for name, size in marker.files.items())
    return marker if intact else None


def check_same(marker: CompleteMarker, source: HubSource, commit: str, directory: Path) -> None:
    """Raise Refused `DirectoryInUse` when a finished directory holds something else: a server may be reading it."""
    if (marker.repo, marker.revision) != (source.repo, commit):
        raise Refused(
            "DirectoryInUse",
            f"{directory} holds hf://{marker.repo}@{marker.revision}, not hf://{source.repo}@{commit}; "
            f"use a directory of its own for each revision, or empty this one",
        )


def wanted_files(files: CheckpointFiles) -> tuple[str, ...]:
    """Names to copy: the weights that the index names, the index, configuration and tokenizer. Raises Refused."""
    if CONFIG not in files.sizes():
        raise Refused("ConfigMissing", f"{files.where} has no {CONFIG}; a model in Hugging Face layout is needed")
    names = {name for name in files.sizes() if _SMALL_FILES.match(name)}
    names.update(find_weights(files).files)
    if INDEX in files.sizes():
        names.add(INDEX)
    return tuple(sorted(names))


def check_space(directory: Path, files: CheckpointFiles, names: Sequence[str]) -> None:
    """Raise Refused `VolumeTooSmall` when what is still to be copied does not fit the free space.

    Space that is needed no more is that of wanted files, each up to its size (a longer one is replaced), and of copies
    that were begun; other files in the directory stay and help nothing.
    """
    sizes = {name: files.sizes()[name] for name in names}
    present = sum(min(size, _size(directory / name) or 0) for name, size in sizes.items())
    begun = sum(_size(path) or 0 for path in (directory / ".cache" / "huggingface" / "download").glob("*.incomplete"))
    needed = max(0, sum(sizes.values()) - present - begun) + SPACE_MARGIN_BYTES
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise Refused(
            "VolumeTooSmall",
            f"{directory} has {free / 2**30:.1f} GiB free, {files.where} needs {needed / 2**30:.1f} GiB more; "
            f"use a larger volume",
        )


def download(files: HubFiles, names: Sequence[str], directory: Path, on_bytes: OnBytes) -> None:
    """Copy `names` into `directory`, resuming what is there, then check sizes and headers and write the marker.

    `on_bytes` is called with each number of bytes received, from several threads. Raises Refused.
    """
    bar = cast(Any, _bar(on_bytes))

    def fetch(name: str) -> None:
        path = directory / name
        if _size(path) not in {None, files.sizes()[name]}:
            path.unlink()  # the hub's client trusts a file of any size once it has recorded the commit
        hf_hub_download(
            files.source.repo, name, revision=files.commit, local_dir=directory, endpoint=files.endpoint, tqdm_class=bar
        )

    pool = ThreadPoolExecutor(max_workers=WORKERS)
    try:
        for _ in pool.map(lambda name: patiently(files.source, lambda: _on_volume(directory, fetch, name)), names):
            pass
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    sizes = {name: files.sizes()[name] for name in names}
    for name, size in sizes.items():
        if _size(directory / name) != size:
            raise corrupt(name, f"{_size(directory / name)} bytes arrived, the hub announced {size}")
    local = LocalFiles(directory)
    for name in find_weights(local).files:
        read_header(local, name)
    _write_marker(directory, CompleteMarker(repo=files.source.repo, revision=files.commit, files=sizes))


def _on_volume(directory: Path, fetch: Callable[[str], None], name: str) -> None:
    try:
        fetch(name)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO}:
            raise unusable(directory, error) from error
        raise


def unusable(directory: Path, error: OSError) -> Refused:
    """The refusal of a directory that cannot be written."""
    return Refused(
        "DirectoryUnusable", f"cannot write to {directory}: {error.strerror or error}; mount a writable volume there"
    )


def _write_marker(directory: Path, marker: CompleteMarker) -> None:
    path = directory / MARKER
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(marker.model_dump(by_alias=True), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise unusable(directory, error) from error


@contextmanager
def exclusive(
    directory: Path,
    *,
    on_wait: Callable[[float], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Hold the directory's lock, so that pods sharing a volume copy the checkpoint once and not over each other.

    `on_wait` is called with the seconds waited so far, once a poll. Raises Refused, retryable, after the limit. A
    volume that knows no locks is used without.
    """
    with (directory / LOCK).open("w") as file:
        start = clock()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = clock() - start
                if waited > LOCK_WAIT_LIMIT_SECONDS:
                    raise Refused(
                        "DirectoryInUse",
                        f"another process has been copying into {directory} for {waited / 3600:.1f} hours",
                        retryable=True,
                    ) from None
                on_wait(waited)
                sleep(LOCK_POLL_SECONDS)
            except OSError as error:
                if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}:
                    raise
                break
        yield


def _bar(on_bytes: OnBytes) -> type:
    """A progress bar as the hub's client drives them, which draws nothing and counts every byte once."""
    lock = threading.Lock()

    class Counter:
        def __init__(self, *_: object, initial: int = 0, total: int | None = None, **__: object) -> None:
            self.n = 0
            self.total = total
            if initial:
                self.update(initial)

        def __enter__(self) -> Counter:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: float | None = 1) -> None:
            with lock:
                self.n += int(count or 0)
                on_bytes(int(count or 0))

        def update_transfer(self, count: float | None = 1) -> None:
            """Bytes on the wire, of which deduplicated storage needs fewer; written bytes are what is counted."""

        def set_postfix_str(self, *_: object, **__: object) -> None:
            pass

        set_transfer_postfix_str = set_postfix_str
        set_description = set_postfix_str
        set_description_str = set_postfix_str
        refresh = set_postfix_str
        close = set_postfix_str

    return Counter


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
