"""Run a program to its end: always with a time limit, and with its own words when it fails."""

import subprocess
from collections.abc import Mapping, Sequence
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
