"""One at a time: a lock file that frees itself when its holder ends, however it ends."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import ClusterError

RETRY_SECONDS = 0.5


@contextmanager
def exclusive(path: Path, timeout_seconds: float, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock at `path` for the block; `waiting` is called once if another process holds it.

    Raises:
        ClusterError: still held by another process after `timeout_seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_seconds
    with path.open("w") as handle:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"another process has held {path} for over {timeout_seconds:.0f} s; find it with "
                        f"`fuser {path}` and end it"
                    ) from None
            if waiting and not told:
                waiting()
                told = True
            time.sleep(RETRY_SECONDS)
        yield
