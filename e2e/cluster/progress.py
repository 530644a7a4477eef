"""Progress that a person can follow: what is being done, for how long, and how long it took last time.

On a terminal one line is redrawn; elsewhere (CI, a log file) lines without control characters are added, a new one
only now and then. Standard library alone: builds start before the virtual environment is complete.
"""

import fcntl
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

REDRAW_SECONDS = 1.0
HEARTBEAT_SECONDS = 60.0
"""Between lines where nothing can be redrawn: often enough to show life, seldom enough to read."""


def duration(seconds: float) -> str:
    """`0.4s`, `12s`, `3m05s` or `1h02m`.

    >>> duration(185)
    '3m05s'
    """
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Durations:
    """How long each slow thing took the last time it was done on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def last(self, name: str) -> float | None:
        """Seconds it took, or None when it was never done here or the file cannot be read."""
        value = self._read().get(name)
        return float(value) if isinstance(value, int | float) else None

    def record(self, name: str, seconds: float) -> None:
        """Remember; several processes may do so at once."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._read()
            known[name] = round(seconds, 1)
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(known, indent=1, sort_keys=True))
            fresh.replace(self._path)

    def _read(self) -> dict[str, object]:
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


class Step:
    """One thing being done. `note` changes what is shown beside the time."""

    def __init__(self, label: str, last_seconds: float | None, out: TextIO, started: float) -> None:
        self.label = label
        self.started = started
        self._last = "" if last_seconds is None else f" (last time {duration(last_seconds)})"
        self._out = out
        self._note = ""
        self._live = out.isatty()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def note(self, text: str) -> None:
        """What it is at, in a few words."""
        self._note = text

    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started

    def begin(self) -> None:
        """Show it and keep it moving."""
        if not self._live and self._last:
            self._line(f"{self.label} ...{self._last}")
        self._thread.start()

    def end(self, outcome: str) -> None:
        """Show the outcome in place of the progress."""
        self._ended.set()
        self._thread.join()
        detail = f", {self._note}" if self._note else ""
        self._line(f"{self.label}: {outcome} in {duration(self.elapsed())}{detail}")

    def _tick(self) -> None:
        while not self._ended.wait(REDRAW_SECONDS if self._live else HEARTBEAT_SECONDS):
            detail = f" {self._note}" if self._note else ""
            text = f"{self.label} ... {duration(self.elapsed())}{detail}{self._last}"
            if self._live:
                self._out.write(f"\r\x1b[2K{text[:100]}")
                self._out.flush()
            else:
                self._line(text)

    def _line(self, text: str) -> None:
        self._out.write(f"\r\x1b[2K{text}\n" if self._live else f"{text}\n")
        self._out.flush()


class Progress:
    """Numbers the steps of one command and remembers how long each took."""

    def __init__(self, durations: Durations, total: int | None = None, out: TextIO | None = None) -> None:
        self._durations = durations
        self._total = total
        self._out = out if out is not None else sys.stdout
        self._done = 0
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """A line that is no step; on a terminal it takes the place of the moving line, which comes back below it."""
        self._out.write(f"\r\x1b[2K{text}\n" if self._out.isatty() else f"{text}\n")
        self._out.flush()

    def skip(self, name: str, why: str) -> None:
        """Count a step that needs no doing."""
        self.say(f"{self._number()}{name}: {why}")

    @contextmanager
    def step(self, name: str, key: str | None = None, like: str | None = None) -> Iterator[Step]:
        """Show `name` while the block runs; with `key` its duration is remembered for next time.

        `like` is the key of something whose last duration tells how long this may take.
        """
        last = self._durations.last(known) if (known := key or like) else None
        step = Step(f"{self._number()}{name}", last, self._out, time.monotonic())
        step.begin()
        try:
            yield step
        except BaseException:
            step.end("failed")
            raise
        step.end("done")
        if key:
            self._durations.record(key, step.elapsed())

    def elapsed(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._started

    def _number(self) -> str:
        self._done += 1
        return f"[{self._done}/{self._total}] " if self._total else "  "
