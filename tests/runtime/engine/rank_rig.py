"""Ranks that each hold a whole provenance model; a prompt that begins with one of `Fault` breaks rank 1 there."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob, Executor, Outcome
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.logs import LogFormat
from octavo_runtime.engine.rank_processes import RankProgram, start_ranks
from octavo_runtime.kv.updates import DeviceUpdates
from tests.runtime.engine.rig import FaultyExecutor, Rig, rig_of

SEQS, PAGE_SIZE = 4, 4


class Fault(IntEnum):
    """First tokens of a prompt, and what they do to the row on rank 1; no other prompt of a test begins with them."""

    TABLE = 501
    """Its block table there shows another page."""
    SKIPPED = 502
    """Its verdict there stays what it was before the step."""
    TOKEN = 503
    """It samples another token there."""
    RAISES = 504
    """The step ends with an exception there."""
    STUCK = 505
    """The step never ends there; it says its pid."""


@dataclass
class BrokenRank:
    """A rank's executor with the faults above. It sees them in the tokens that a step brings, like everything else."""

    local: FaultyExecutor

    @property
    def checks(self) -> int:
        return self.local.checks

    def self_check(self, step: int) -> int:
        return self.local.self_check(step)

    def execute(self, step: PreparedStep, updates: DeviceUpdates, digests: DigestJob = NO_DIGESTS) -> Outcome:
        host = step.host
        begins = host.positions == 0
        rows = dict(zip(host.token_ids[begins].tolist(), host.token_rows[begins].tolist(), strict=True))
        if Fault.RAISES in rows:
            raise ValueError("planted")
        if Fault.STUCK in rows:
            say(os.getpid())
            while True:
                pass
        if Fault.TABLE in rows:
            row = rows[Fault.TABLE]

            def damage(batch: Any, _rows: object) -> None:
                batch.block_table[row, 0, 0] += 1

            self.local.fault = damage
        outcome = self.local.execute(step, updates, digests)
        self.local.fault = None
        verdicts, tokens = list(outcome.verdicts), list(outcome.tokens)
        if Fault.SKIPPED in rows:
            verdicts[rows[Fault.SKIPPED]] = 0
        if Fault.TOKEN in rows:
            tokens[rows[Fault.TOKEN]] += 1
        return dataclasses.replace(outcome, verdicts=verdicts, tokens=tokens)


def build(rank: int, world_size: int) -> Executor:
    """Rank 0's executor is that of the rig; this is for the others."""
    assert world_size > rank
    executor = rig_of(seqs=SEQS, page_size=PAGE_SIZE).executor
    return BrokenRank(executor) if rank else executor


PROGRAM = RankProgram(build, LogFormat.LOGFMT)


def over_ranks(rig: Rig, executor: Executor, mode: IntegrityMode = IntegrityMode.ENFORCE) -> Rig:
    """The rig's requests and books, with an engine over all ranks."""
    engine = Engine(rig.scheduler, BatchBuilder(SEQS), executor, mode, PageDigests(1, 1, PAGE_SIZE), clock=rig.clock)
    return dataclasses.replace(rig, engine=engine)


def say(pid: int) -> None:
    """To whoever started rank 0; the ranks share its output."""
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()


def main() -> None:
    """A rank 0 in a process of its own, idle or in the middle of a step when the pid of rank 1 is said."""
    rig = rig_of(seqs=SEQS, page_size=PAGE_SIZE)
    ranks = start_ranks(PROGRAM, 2)
    engine = over_ranks(rig, ranks.executor)
    engine.submit("a", [7, 8, 9], 2)
    engine.run()
    assert len(engine.tokens["a"]) == 2
    if sys.argv[1] == "step":
        engine.submit("stuck", [Fault.STUCK, 8, 9], 2)
        engine.run()
    say(ranks.pids[0])
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
