"""`octavo fetch`: copy a checkpoint from a hub into a directory, as an init container or by hand."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from octavo_runtime.cli.hub_environment import prepare_hub_environment
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.termination import ExitCode

LINE_SECONDS = 10.0
"""Pause between progress lines in a log."""

TERMINAL_SECONDS = 0.2
"""Pause between redraws of the one line on a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="hf://REPO[@REVISION]", help="hub repository; a commit is best")
    parser.add_argument("directory", metavar="DIR", type=Path, help="where to put the files; one directory a revision")


def run(args: argparse.Namespace) -> int:
    """Copy, or say that it is all there. Raises Refused."""
    directory: Path = args.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(
            "DirectoryUnusable", f"cannot make {directory}: {error.strerror or error}; mount a volume there"
        ) from error
    prepare_hub_environment(cache=directory / ".cache" / "huggingface")
    _fetch(args.source, directory)
    return ExitCode.OK


def _fetch(address: str, directory: Path) -> None:
    # Only now: the hub's client reads its environment when it is imported.
    from octavo_runtime.loading import download as copy
    from octavo_runtime.loading.hub import HubFiles, HubSource

    source = HubSource.parse(address)
    waiting = Waiting(sys.stdout, directory)
    try:
        with copy.exclusive(directory, on_wait=waiting.report):
            marker = copy.completed(directory)
            if marker is not None and source.pinned:
                copy.check_same(marker, source, source.revision or "", directory)
                print(f"{directory} already holds {source}", flush=True)
                return
            files = HubFiles.open(source)
            if marker is not None:
                copy.check_same(marker, source, files.commit, directory)
                print(f"{directory} already holds {files.where}", flush=True)
                return
            names = copy.wanted_files(files)
            copy.check_space(directory, files, names)
            total = sum(files.sizes()[name] for name in names)
            print(f"fetching {files.where}: {len(names)} files, {_size(total)}, into {directory}", flush=True)
            progress = Progress(total, sys.stdout)
            copy.download(files, names, directory, progress.add)
            progress.finish()
    except OSError as error:
        raise copy.unusable(directory, error) from error


class Progress:
    """Bytes, share, rate and time left: one redrawn line on a terminal, plain lines in a log."""

    def __init__(self, total_bytes: int, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total_bytes
        self._stream = stream
        self._clock = clock
        self._terminal = stream.isatty()
        self._start = self._due = clock()
        self._done = 0

    def add(self, count: int) -> None:
        """Count `count` more bytes and report when a report is due."""
        self._done += count
        now = self._clock()
        if now >= self._due:
            self._due = now + (TERMINAL_SECONDS if self._terminal else LINE_SECONDS)
            self._write(self._line(now), last=False)

    def finish(self) -> None:
        """Say how much was copied and how fast."""
        seconds = max(1e-3, self._clock() - self._start)
        self._write(f"fetched {_size(self._done)} in {seconds:.1f} s ({_size(self._done / seconds)}/s)", last=True)

    def _line(self, now: float) -> str:
        share = self._done / self._total if self._total else 1.0
        line = f"{_size(self._done)} of {_size(self._total)} ({share:.0%})"
        elapsed = now - self._start
        if elapsed > 0 and self._done:
            rate = self._done / elapsed
            line += f", {_size(rate)}/s, about {_duration((self._total - self._done) / rate)} left"
        return line

    def _write(self, line: str, *, last: bool) -> None:
        text = f"\r\x1b[K{line}" + ("\n" if last else "") if self._terminal else f"{line}\n"
        self._stream.write(text)
        self._stream.flush()


class Waiting:
    """Says now and then that another process is copying into the same directory."""

    def __init__(self, stream: TextIO, directory: Path) -> None:
        self._stream = stream
        self._directory = directory
        self._due_seconds = 0.0

    def report(self, waited_seconds: float) -> None:
        """Write a line at first and then every LINE_SECONDS."""
        if waited_seconds >= self._due_seconds:
            self._due_seconds = waited_seconds + LINE_SECONDS
            self._stream.write(f"waiting for another process that copies into {self._directory}\n")
            self._stream.flush()


def _size(size_bytes: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:,.1f} {name}"
    return f"{size_bytes:.0f} B"


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
