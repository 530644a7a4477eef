"""Several ranks as one executor: they agree, or no token leaves; one of them dies, or fails, and all end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from octavo_runtime.contract.termination import ExitCode
from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob, Outcome
from octavo_runtime.engine.rank_frames import VERSION, Execute, FrameError, SelfCheck, check_header, decode, encode
from octavo_runtime.engine.rank_processes import RankProgram, Ranks, start_ranks
from octavo_runtime.engine.ranks import RankFailed, combine
from octavo_runtime.kv.updates import DeviceUpdates, PageCopy, RecordUpdates
from tests.runtime.engine.provenance import expected_answer
from tests.runtime.engine.rank_rig import PAGE_SIZE, PROGRAM, SEQS, Fault, build, over_ranks
from tests.runtime.engine.rig import Rig, rig_of

ROOT = Path(__file__).parents[3]
STEP = 7
NOBODY_HANGS_SECONDS = 30
"""Only says that a wait is bounded; nothing here takes a second."""


# What ranks say to each other.


def frame() -> Execute:
    rig = rig_of()
    rig.submit("a", [3, 4, 5], 2)
    rows = rig.scheduler.schedule().rows
    host = rig.engine._builder.build(STEP, rows, rig.scheduler.slots).host
    words = np.array([1, 2], np.int32)
    updates = DeviceUpdates(RecordUpdates(words, words, words, words), (PageCopy(1, 2, 3),))
    return Execute(host, updates, DigestJob(np.array([5], np.int64), (0,)))


def test_a_step_arrives_as_it_was_sent_and_its_arrays_may_be_written() -> None:
    sent = frame()
    arrived = decode(encode(sent))
    assert isinstance(arrived, Execute)
    parts = {"table": None, "sampling": None}
    np.testing.assert_equal(vars(arrived.host) | parts, vars(sent.host) | parts)
    np.testing.assert_equal(vars(arrived.host.table), vars(sent.host.table))
    np.testing.assert_equal(vars(arrived.host.sampling), vars(sent.host.sampling))
    np.testing.assert_equal(vars(arrived.updates.records), vars(sent.updates.records))
    assert arrived.updates.copies == sent.updates.copies
    assert (arrived.digests.pages.tolist(), arrived.digests.layers) == ([5], (0,))
    assert arrived.host.token_ids.dtype == np.int64
    assert arrived.host.token_ids.flags.writeable


def test_frames_of_another_version_type_or_length_are_refused() -> None:
    check_header(VERSION, 100)
    for version, length in ((VERSION + 1, 100), (VERSION, 0), (VERSION, 1 << 40)):
        with pytest.raises(FrameError):
            check_header(version, length)
    with pytest.raises(FrameError):
        decode(encode(frame()).replace(b"<i8", b"<f8"))
    with pytest.raises(FrameError):
        decode(encode(SelfCheck(1)).replace(b"SelfCheck", b"SelfDrive"))
    with pytest.raises(FrameError):
        decode(b"\x80\x04N.")


# What they say together.


def test_a_row_is_clean_only_when_every_rank_says_so() -> None:
    clean, both, one = STEP, -5, -6
    outcome = combine([Outcome([1, 2, 3], [clean, both, clean]), Outcome([1, 2, 3], [clean, both, one])], STEP)
    assert outcome.verdicts == [clean, both, one]
    assert outcome.disagreements == [2]


def test_ranks_that_sample_other_tokens_disagree() -> None:
    outcome = combine(
        [Outcome([1, 2], [STEP, STEP]), Outcome([1, 9], [STEP, STEP]), Outcome([1, 2], [STEP, STEP])], STEP
    )
    assert outcome.disagreements == [1]


def test_digests_add_up_in_32_bits_and_one_wrong_copy_is_wrong() -> None:
    ranks = [Outcome([], [], [0, 1], [2**31 - 1, 5]), Outcome([], [], [0, 0], [1, -7])]
    outcome = combine(ranks, STEP)
    assert outcome.moved == [0, 1]
    assert outcome.digests == [-(2**31), -2]


# Two processes that go on.


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = start_ranks(PROGRAM, 2, on_lost=lambda why: pytest.fail(why))
    yield started
    started.close()
    assert not any(psutil.pid_exists(pid) for pid in started.pids)


@pytest.fixture(scope="module")
def rig(ranks: Ranks) -> Rig:
    """One for all these tests: what the device of rank 1 knows stays from one to the next."""
    return over_ranks(rig_of(seqs=SEQS, page_size=PAGE_SIZE), ranks.executor)


PROMPTS = {name: [11 + place, 3, 4, 5, 6, 7, 8] for place, name in enumerate("abcdef")}


def run_all(rig: Rig, prompts: dict[str, list[int]]) -> None:
    for name, prompt in prompts.items():
        rig.submit(name, prompt, 9)
    rig.run()


def test_two_ranks_answer_as_one_does(rig: Rig) -> None:
    alone = rig_of(seqs=SEQS, page_size=PAGE_SIZE)
    run_all(alone, PROMPTS)
    run_all(rig, PROMPTS)
    assert rig.tokens == alone.tokens == {name: expected_answer(prompt, 9) for name, prompt in PROMPTS.items()}
    assert not rig.violations


def test_an_idle_group_answers_the_self_check(rig: Rig) -> None:
    launches = rig.engine._executor.checks
    rig.engine.self_check()
    assert not rig.engine.stats().integrity_stalled
    assert rig.engine._executor.checks == launches + 1


@pytest.mark.parametrize("fault", [Fault.TABLE, Fault.SKIPPED, Fault.TOKEN])
def test_a_disagreement_ends_its_row_and_no_other(rig: Rig, fault: Fault) -> None:
    bad, good = f"bad {fault.name}", f"good {fault.name}"
    before = len(rig.violations)
    rig.submit(bad, [fault, 5, 6, 7, 8], 4)
    rig.submit(good, [40, 5, 6, 7, 8], 4)
    rig.run()
    # Nothing was sent when it was found, so it is recomputed once, and breaks again.
    violations = rig.violations[before:]
    assert [(v.site, v.request, v.reasons[0]) for v in violations] == [("rank", bad, "rank_mismatch")] * 2
    assert rig.failed[bad].code == "kv_integrity_violation"
    assert bad not in rig.tokens
    assert rig.tokens[good] == expected_answer([40, 5, 6, 7, 8], 4)


# Ranks that fail or die.


@pytest.mark.slow
def test_an_exception_of_one_rank_ends_all() -> None:
    started = start_ranks(PROGRAM, 2, on_lost=lambda why: None)
    try:
        rig = over_ranks(rig_of(seqs=SEQS, page_size=PAGE_SIZE), started.executor)
        rig.submit("a", [Fault.RAISES, 5], 4)
        with pytest.raises(RankFailed, match="rank 1 ended with an exception"):
            rig.run()
        with pytest.raises(RankFailed):
            started.executor.self_check(STEP)
        psutil.wait_procs([psutil.Process(pid) for pid in started.pids if psutil.pid_exists(pid)], NOBODY_HANGS_SECONDS)
    finally:
        started.close()
    assert not any(psutil.pid_exists(pid) for pid in started.pids)


def broken(rank: int, world_size: int) -> object:
    if rank:
        raise ValueError("planted")
    return build(rank, world_size)


@pytest.mark.slow
def test_a_rank_that_does_not_start_is_an_error() -> None:
    with pytest.raises(RankFailed, match="rank 1 ended with 1 before it was ready"):
        start_ranks(RankProgram(broken, PROGRAM.log_format), 2)  # type: ignore[arg-type]


@contextmanager
def a_group_of_its_own(what: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Rank 0 as a process, and rank 1; both are up and have run a step."""
    command = [sys.executable, "-m", "tests.runtime.engine.rank_rig", what]
    rank_0 = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert rank_0.stdin is not None
    assert rank_0.stdout is not None
    try:
        rank_1 = psutil.Process(int(rank_0.stdout.readline()))
        yield rank_0, rank_1
    finally:
        rank_0.kill()
        rank_0.wait(NOBODY_HANGS_SECONDS)
        rank_0.stdin.close()
        rank_0.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["idle", "step"])
def test_the_death_of_rank_1_ends_rank_0_with_an_error(when: str) -> None:
    with a_group_of_its_own(when) as (rank_0, rank_1):
        rank_1.kill()
        assert rank_0.wait(NOBODY_HANGS_SECONDS) == ExitCode.FAILED


@pytest.mark.slow
@pytest.mark.parametrize("when", ["idle", "step"])
def test_the_death_of_rank_0_ends_rank_1(when: str) -> None:
    with a_group_of_its_own(when) as (rank_0, rank_1):
        killed = time.monotonic()
        os.kill(rank_0.pid, signal.SIGKILL)
        with suppress(psutil.NoSuchProcess):
            rank_1.wait(NOBODY_HANGS_SECONDS)
        assert time.monotonic() - killed < NOBODY_HANGS_SECONDS
    assert not rank_1.is_running()


def test_one_rank_needs_no_group() -> None:
    with pytest.raises(ValueError, match="at least two ranks"):
        start_ranks(PROGRAM, 1)


def test_no_digests_is_a_job_too() -> None:
    sent = frame()
    arrived = decode(encode(Execute(sent.host, sent.updates, NO_DIGESTS)))
    assert isinstance(arrived, Execute)
    assert len(arrived.digests) == 0
