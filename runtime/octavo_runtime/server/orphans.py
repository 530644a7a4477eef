"""Process 1 of a container adopts every orphan in it and has to collect them, else they stay as zombies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Container

INIT = 1
INTERVAL_SECONDS = 5.0
"""How long a zombie may stay. Looking costs a system call; uvloop keeps the signal that would tell us to itself."""


async def collect_orphans(own: Callable[[], Container[int | None]]) -> None:
    """For ever, collect children that ended and are not among `own()`; returns at once unless this is process 1.

    Our own children are left to `multiprocessing`, which waits for them itself.
    """
    while os.getpid() == INIT:
        collect(own)
        await asyncio.sleep(INTERVAL_SECONDS)


def collect(own: Callable[[], Container[int | None]]) -> int:
    """Collect ended children until none is left or the next is our own; returns how many."""
    count = 0
    while (pid := _next_ended()) is not None and pid not in own():
        os.waitpid(pid, os.WNOHANG)
        count += 1
    return count


def _next_ended() -> int | None:
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else ended.si_pid
