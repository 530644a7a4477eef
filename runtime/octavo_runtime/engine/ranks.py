"""Several ranks as one executor: each step goes to all of them, and only what all of them say counts.

Rank 0 has the engine. It sends what differs between two steps, a few arrays, and every rank runs its own LocalExecutor
on them; the answers are gathered. Frames and answers are small and on the host, so their group is gloo on every device;
what ranks exchange within a layer is the model's business and goes through a group of its own.

Nobody waits for ever: an exception of any rank travels with its answer, and the death of a process is seen by whoever
holds the other end of its link (`rank_processes`), not by a time limit of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import numpy as np
import torch

from octavo_kernels.formats.verdict import is_clean
from octavo_runtime.engine.executor import NO_DIGESTS, DigestJob, Executor, Outcome
from octavo_runtime.engine.host_step import PreparedStep
from octavo_runtime.engine.rank_frames import (
    VERSION,
    AnyFrame,
    Execute,
    SelfCheck,
    Shutdown,
    check_header,
    decode,
    encode,
)
from octavo_runtime.kv.updates import DeviceUpdates

ROOT = 0
STEP_TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for another one within a step: longer than compiling a kernel takes. Liveness acts earlier."""
IDLE_TIMEOUT = timedelta(days=3650)
"""How long a rank waits for the next step. An engine may idle for days; what ends the wait is the link to rank 0."""

_FAILED, _DONE = 0, 1
_HEAD = 2
"""An answer [int64] begins with _DONE or _FAILED and the launches of the check counted so far."""


class RankFailed(RuntimeError):
    """A rank is dead, or ended with an exception; no step can follow."""


class Work(Protocol):
    """A collective that has begun."""

    def wait(self) -> bool:
        """Until it is done; raises RuntimeError when a peer is gone or the time is up."""
        ...


class Collectives(Protocol):
    """What a torch backend such as ProcessGroupGloo can do (its stubs do not say so)."""

    def broadcast(self, tensor: torch.Tensor, root: int, timeout: timedelta) -> Work:
        """The root's tensor becomes everyone's."""
        ...

    def gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, root: int, timeout: timedelta) -> Work:
        """Everyone's tensor, by rank, in the root's `outputs`."""
        ...


@dataclass(frozen=True)
class Group:
    """The process group of frames and answers, as one rank sees it."""

    backend: Collectives
    rank: int
    world_size: int
    step_timeout: timedelta = STEP_TIMEOUT

    def send(self, frame: AnyFrame) -> None:
        """Rank 0: send a frame to all others."""
        body = np.frombuffer(encode(frame), np.uint8).copy()
        self._broadcast(torch.tensor([VERSION, len(body)]), self.step_timeout)
        self._broadcast(torch.from_numpy(body), self.step_timeout)

    def receive(self) -> AnyFrame:
        """Others: wait for the next frame; raises FrameError."""
        header = torch.zeros(2, dtype=torch.int64)
        self._broadcast(header, IDLE_TIMEOUT)
        version, length = header.tolist()
        check_header(version, length)
        body = torch.zeros(length, dtype=torch.uint8)
        self._broadcast(body, self.step_timeout)
        return decode(body.numpy().tobytes())

    def gather(self, answer: Sequence[int]) -> list[list[int]]:
        """Everyone's answer, by rank, on rank 0; empty on the others. All answers have one length."""
        mine = torch.tensor(answer, dtype=torch.int64)
        all_answers = [torch.empty_like(mine) for _ in range(self.world_size if self.rank == ROOT else 0)]
        self.backend.gather(all_answers, mine, ROOT, self.step_timeout).wait()
        return [theirs.tolist() for theirs in all_answers]

    def _broadcast(self, tensor: torch.Tensor, timeout: timedelta) -> None:
        self.backend.broadcast(tensor, ROOT, timeout).wait()


@dataclass(frozen=True)
class _Sizes:
    """How an answer to a step divides: launches, verdicts, tokens, page copies, digests."""

    rows: int
    copies: int
    digests: int

    def pack(self, outcome: Outcome, checks: int) -> list[int]:
        return [_DONE, checks, *outcome.verdicts, *outcome.tokens, *outcome.moved, *outcome.digests]

    def failed(self) -> list[int]:
        return [_FAILED] + [0] * (_HEAD - 1 + 2 * self.rows + self.copies + self.digests)

    def unpack(self, answer: list[int]) -> Outcome:
        words = iter(answer[_HEAD:])

        def take(count: int) -> list[int]:
            return [next(words) for _ in range(count)]

        verdicts, tokens = take(self.rows), take(self.rows)
        return Outcome(tokens, verdicts, take(self.copies), take(self.digests))


def combine(outcomes: Sequence[Outcome], step: int) -> Outcome:
    """One outcome of all ranks' (at least one, rank 0's first).

    A row is clean only when it is on every rank; otherwise its verdict is the first one that is not. Rows on which
    ranks differ in verdict or token are listed. A page was copied wrong if any rank says so; digests add up.
    """
    first, rows = outcomes[0], range(len(outcomes[0].verdicts))
    said = [[(outcome.verdicts[row], outcome.tokens[row]) for outcome in outcomes] for row in rows]
    return Outcome(
        tokens=first.tokens,
        verdicts=[next((word for word, _ in words if not is_clean(word, step)), step) for words in said],
        moved=[max(of_copy) for of_copy in zip(*(outcome.moved for outcome in outcomes), strict=True)],
        digests=[_wrapped(sum(of_page)) for of_page in zip(*(outcome.digests for outcome in outcomes), strict=True)],
        disagreements=[row for row, words in zip(rows, said, strict=True) if len(set(words)) > 1],
    )


def _wrapped(total: int) -> int:
    """Modulo 2**32, as an int32."""
    return (total + 2**31) % 2**32 - 2**31


class GroupExecutor:
    """All ranks, on rank 0; `local` is its own. `on_failure` is called once, when no step can follow any more."""

    def __init__(self, local: Executor, group: Group, on_failure: Callable[[], None]) -> None:
        self._local = local
        self._group = group
        self._on_failure = on_failure
        self._broken = False
        self._checks = 0

    @property
    def checks(self) -> int:
        """See `Executor`; of the rank that counted fewest, so that one silent rank is silence."""
        return self._checks

    def execute(self, step: PreparedStep, updates: DeviceUpdates, digests: DigestJob = NO_DIGESTS) -> Outcome:
        """See `Executor`; raises RankFailed, and whatever went wrong on this rank."""
        sizes = _Sizes(step.host.num_rows, len(updates.copies), len(digests))

        def run() -> list[int]:
            outcome = self._local.execute(step, updates, digests)
            return sizes.pack(outcome, self._local.checks)

        answers = self._ask(Execute(step.host, updates, digests), run)
        return combine([sizes.unpack(answer) for answer in answers], step.host.step)

    def self_check(self, step: int) -> int:
        """See `Executor`; a word that is not `step` as soon as one rank says one. Raises as `execute`."""

        def run() -> list[int]:
            word = self._local.self_check(step)
            return [_DONE, self._local.checks, word]

        answers = self._ask(SelfCheck(step), run)
        return next((word for *_, word in answers if not is_clean(word, step)), step)

    def shut_down(self) -> None:
        """Let the other ranks end."""
        if not self._broken:
            self._broken = True
            self._group.send(Shutdown())

    def _ask(self, frame: AnyFrame, run: Callable[[], list[int]]) -> list[list[int]]:
        if self._broken:
            raise RankFailed("a rank failed before, or the ranks were shut down")
        try:
            answers = self._said(frame, run)
        except BaseException:
            self._broken = True
            self._on_failure()
            raise
        self._checks = min(checks for _, checks, *_ in answers)
        return answers

    def _said(self, frame: AnyFrame, run: Callable[[], list[int]]) -> list[list[int]]:
        try:
            self._group.send(frame)
        except RuntimeError as error:
            raise RankFailed(f"the other ranks are not reached: {error}") from error
        mine = run()
        try:
            answers = self._group.gather(mine)
        except RuntimeError as error:
            raise RankFailed(f"the other ranks do not answer: {error}") from error
        failed = [rank for rank, answer in enumerate(answers) if answer[0] != _DONE]
        if failed:
            raise RankFailed(f"rank {', '.join(map(str, failed))} ended with an exception; its log says which")
        return answers


def follow(local: Executor, group: Group) -> None:
    """What every rank but 0 does: run the steps that rank 0 sends until it says Shutdown.

    Raises FrameError, and whatever a step raised, which rank 0 is told before.
    """
    while True:
        frame = group.receive()
        match frame:
            case Execute():
                sizes = _Sizes(frame.host.num_rows, len(frame.updates.copies), len(frame.digests))
                try:
                    outcome = local.execute(PreparedStep(frame.host, ()), frame.updates, frame.digests)
                except Exception:
                    group.gather(sizes.failed())
                    raise
                group.gather(sizes.pack(outcome, local.checks))
            case SelfCheck():
                try:
                    word = local.self_check(frame.step)
                except Exception:
                    group.gather([_FAILED, 0, 0])
                    raise
                group.gather([_DONE, local.checks, word])
            case Shutdown():
                return
