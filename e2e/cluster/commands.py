"""Run a program to its end: always with a time limit, and with its own words when it fails."""

import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import ClusterError

SHOWN_BYTES = 2000
"""Of a failed program's last words: enough for the cause, short enough for a screen."""


def run(
    argv: Sequence[str | Path],
    timeout_seconds: float = 30.0,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Standard output of a program that succeeded.

    Raises:
        ClusterError: it is not there, took too long or failed; the message ends with what it wrote last.
    """
    shown = " ".join(str(word) for word in argv[:4])
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env=None if env is None else dict(env),
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"`{shown} ...` did not end within {timeout_seconds:.0f} s") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-SHOWN_BYTES:]
        raise ClusterError(f"`{shown} ...` failed with status {done.returncode}: {words}")
    return done.stdout


def succeeds(argv: Sequence[str | Path], timeout_seconds: float = 30.0) -> bool:
    """Whether it ran and succeeded, where failure is an answer."""
    try:
        run(argv, timeout_seconds)
    except ClusterError:
        return False
    return True


def stream(
    argv: Sequence[str | Path],
    timeout_seconds: float,
    each_line: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> int:
    """Run a program that takes minutes, hand over each line it writes to either output; its status.

    Raises:
        ClusterError: it is not there, or did not end in time and was ended.
    """
    try:
        process = subprocess.Popen(
            [str(word) for word in argv],
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{argv[0]} is not installed") from error
    with process:
        reader = threading.Thread(target=_read, args=(process.stdout or (), each_line), daemon=True)
        reader.start()
        try:
            status = process.wait(timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"`{argv[0]} ...` did not end within {timeout_seconds:.0f} s and was ended") from error
        finally:
            if process.poll() is None:
                process.kill()
        reader.join(timeout=10)
    return status


def _read(lines: Iterable[str], each_line: Callable[[str], None]) -> None:
    for line in lines:
        each_line(line.rstrip("\n"))
