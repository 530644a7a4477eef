"""The processes of ranks 1 and up: how they start, meet rank 0, and learn that it is gone, and it that they are.

Each has one link, a pipe to rank 0, that carries only "I am ready" and its own end: a rank whose link ends exits there
and then, in the middle of a step too. Rank 0 watches the processes themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol, cast

from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

from octavo_runtime.contract.termination import ExitCode
from octavo_runtime.engine.executor import Executor
from octavo_runtime.engine.logs import LogFormat, configure_logs, logger
from octavo_runtime.engine.ranks import STEP_TIMEOUT, Collectives, Group, GroupExecutor, RankFailed, follow

LOOPBACK = "127.0.0.1"
START_SECONDS = 1800.0
"""How long a rank may load its share of the model."""
END_SECONDS = 5.0
"""How long a rank that was told to end, or whose link was cut, may take."""


class BuildRank(Protocol):
    """Makes one rank's executor. Pickled by name to the new processes."""

    def __call__(self, rank: int, world_size: int) -> Executor:
        """Load the rank's share; may raise."""
        ...


@dataclass(frozen=True)
class RankProgram:
    """What each rank runs."""

    build: BuildRank
    log_format: LogFormat


class Ranks:
    """The processes of ranks 1 and up, seen from rank 0, and the executor over all."""

    def __init__(self, processes: list[SpawnProcess], links: list[Connection]) -> None:
        self._processes = processes
        self._links = links
        self._ended = threading.Event()
        self._executor: GroupExecutor | None = None

    @property
    def executor(self) -> GroupExecutor:
        """Steps on all ranks."""
        assert self._executor is not None
        return self._executor

    @property
    def pids(self) -> list[int]:
        """Process ids of ranks 1 and up."""
        return [process.pid or 0 for process in self._processes]

    def close(self) -> None:
        """End all other ranks: politely, and within END_SECONDS in any case."""
        if self._executor is not None and not self._ended.is_set():
            self._ended.set()
            try:
                self._executor.shut_down()
            except RuntimeError:
                logger("ranks").warning("ranks do not take the word to shut down")
            self._join(END_SECONDS)
        self.cut()
        self._join(END_SECONDS)
        for process in self._processes:
            if process.is_alive():
                process.kill()
                process.join(END_SECONDS)

    def cut(self) -> None:
        """End all other ranks without a word."""
        self._ended.set()
        for link in self._links:
            link.close()

    def _join(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))

    def await_ready(self, seconds: float) -> None:
        """Wait until every rank is built; raises RankFailed when one ends before, or takes longer."""
        deadline = time.monotonic() + seconds
        waiting = dict(zip(self._links, self._processes, strict=True))
        while waiting:
            spoke = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not spoke:
                raise RankFailed(f"a rank was not ready within {seconds:.0f} s")
            for link in [link for link in waiting if link in spoke]:
                process = waiting.pop(link)
                try:
                    link.recv_bytes()
                except (EOFError, OSError):
                    process.join(END_SECONDS)
                    raise RankFailed(f"{process.name} ended with {process.exitcode} before it was ready") from None

    def run(self, local: Executor, group: Group, on_lost: Callable[[str], None]) -> None:
        """From now on the executor works, and `on_lost` is called (in a thread of its own) when a rank ends."""
        self._executor = GroupExecutor(local, group, on_failure=self.cut)
        threading.Thread(target=self._watch, args=(on_lost,), name="octavo-ranks", daemon=True).start()

    def _watch(self, on_lost: Callable[[str], None]) -> None:
        sentinels = {process.sentinel: process for process in self._processes}
        ended = wait(list(sentinels))
        if self._ended.is_set():
            return
        process = next(process for sentinel, process in sentinels.items() if sentinel in ended)
        process.join(END_SECONDS)
        self.cut()
        on_lost(f"{process.name} ended with {process.exitcode}")


def end_this_process(why: str) -> None:
    """What rank 0 does by default when another rank is lost: there is nothing to save, and nobody to wait for."""
    logger("ranks").error("a rank is lost", extra={"reason": why})
    os._exit(ExitCode.FAILED)


def start_ranks(
    program: RankProgram,
    world_size: int,
    on_lost: Callable[[str], None] = end_this_process,
    *,
    start_seconds: float = START_SECONDS,
) -> Ranks:
    """Start ranks 1 and up, build rank 0 here, and let them meet on this machine's loopback interface.

    With one rank there is no use for this: a LocalExecutor needs no group. Raises RankFailed, or what building rank 0
    raised; then no process is left.
    """
    if world_size < 2:
        raise ValueError(f"a group has at least two ranks, not {world_size}")
    context = multiprocessing.get_context("spawn")
    # The ranks find each other's ports through a file that only this user can read; no port is fixed or open to others.
    with tempfile.TemporaryDirectory(prefix="octavo-ranks-") as meeting:
        place = Path(meeting) / "store"
        processes: list[SpawnProcess] = []
        links: list[Connection] = []
        ranks = Ranks(processes, links)
        try:
            for rank in range(1, world_size):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_run_rank, args=(program, rank, world_size, place, theirs), name=f"rank {rank}", daemon=True
                )
                links.append(ours)
                process.start()
                processes.append(process)
                theirs.close()
            local = program.build(0, world_size)
            ranks.await_ready(start_seconds)
            for link in links:
                link.send_bytes(b"meet")
            ranks.run(local, _join_group(place, 0, world_size), on_lost)
        except BaseException:
            ranks.close()
            raise
    return ranks


def _join_group(place: Path, rank: int, world_size: int) -> Group:
    """Returns when all ranks are there."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stubs call it Options
    options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._timeout = STEP_TIMEOUT
    backend = ProcessGroupGloo(FileStore(str(place), world_size), rank, world_size, options)
    group = Group(cast(Collectives, backend), rank, world_size)
    group.gather([rank])  # rank 0 takes the file away when it returns, so it waits until nobody reads it any more
    return group


def _run_rank(program: RankProgram, rank: int, world_size: int, place: Path, link: Connection) -> None:
    """Body of a rank's process: exit 0 when told to shut down, 1 when anything went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; rank 0 decides
    configure_logs(program.log_format)
    meet = threading.Event()
    threading.Thread(target=_end_with_rank_0, args=(link, meet), name="octavo-rank-link", daemon=True).start()
    try:
        local = program.build(rank, world_size)
        link.send_bytes(b"ready")
        meet.wait()
        follow(local, _join_group(place, rank, world_size))
    except Exception:
        logger("ranks").exception("a rank failed", extra={"rank": rank})
        os._exit(ExitCode.FAILED)
    os._exit(ExitCode.OK)  # the group's threads would wait for peers that are ending as well


def _end_with_rank_0(link: Connection, meet: threading.Event) -> None:
    """Read the link: its first word is that all ranks are ready, its end is that of rank 0."""
    try:
        while link.recv_bytes():
            meet.set()
    except (EOFError, OSError):
        pass
    os._exit(ExitCode.FAILED)
