"""The engine process: it serves, it ends when told, and it does not outlive the process that it serves."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_runtime.contract.termination import ExitCode
from octavo_runtime.engine.messages import (
    LENGTH_BYTES,
    Cancel,
    Failed,
    FinishReason,
    Message,
    Sampling,
    Shutdown,
    Started,
    Stepped,
    Submit,
    Token,
    encode,
    frame_length,
    from_engine,
)
from octavo_runtime.engine.process import EngineProgram, run_engine_process
from tests.runtime.server.echo import HANG, byte_tokenizer, crash_at_start, program, refuse_to_start

WAIT_SECONDS = 60.0
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)


class Peer:
    """The HTTP process's side, in a test."""

    def __init__(self, program: EngineProgram) -> None:
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.socket.settimeout(WAIT_SECONDS)
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=run_engine_process, args=(program, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, message: Message) -> None:
        self.socket.sendall(encode(message))

    def receive(self) -> Message:
        length = frame_length(self._exactly(LENGTH_BYTES))
        message: Message = from_engine.decode(self._exactly(length))
        return message

    def receive_until(self, kind: type[Message]) -> Message:
        while not isinstance(message := self.receive(), kind):
            pass
        return message

    def submit(self, request: str, text: str) -> None:
        prompt = byte_tokenizer().encode(text).ids
        self.send(Submit(request, prompt, 3, GREEDY, []))

    def exit_code(self) -> int | None:
        self.process.join(WAIT_SECONDS)
        return self.process.exitcode

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.join(WAIT_SECONDS)


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer(program())
    yield one
    one.close()


def test_an_engine_answers_and_ends_when_told(peer: Peer) -> None:
    started = peer.receive_until(Started)
    assert isinstance(started, Started)
    peer.submit("r1", "echo abc")
    tokens: list[Token] = []
    while not tokens or tokens[-1].finish is None:
        stepped = peer.receive()
        assert isinstance(stepped, Stepped)
        tokens += stepped.tokens
    assert [token.request for token in tokens] == ["r1"] * 3
    assert tokens[-1].finish is FinishReason.LENGTH
    peer.send(Shutdown())
    assert peer.exit_code() == ExitCode.OK


def test_an_idle_engine_gives_signs_of_life(peer: Peer) -> None:
    peer.receive_until(Started)
    assert [type(peer.receive()) for _ in range(3)] == [Stepped] * 3


def test_an_engine_ends_when_nobody_listens_any_more(peer: Peer) -> None:
    peer.receive_until(Started)
    peer.socket.close()
    assert peer.exit_code() == ExitCode.FAILED


def test_an_engine_ends_in_the_middle_of_a_step_when_nobody_listens_any_more(peer: Peer) -> None:
    peer.receive_until(Started)
    peer.submit("r1", HANG)
    peer.send(Cancel("r2"))
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.exit_code() == ExitCode.FAILED


def test_ctrl_c_is_left_to_the_http_process(peer: Peer) -> None:
    peer.receive_until(Started)
    assert peer.process.pid is not None
    os.kill(peer.process.pid, signal.SIGINT)
    peer.submit("r1", "echo abc")
    while not (stepped := peer.receive_until(Stepped)).tokens:  # type: ignore[attr-defined]
        pass
    assert isinstance(stepped, Stepped)


@pytest.mark.parametrize(
    ("start", "reason", "code"),
    [(refuse_to_start, "UnexpectedDevice", ExitCode.REFUSED), (crash_at_start, "RuntimeError", ExitCode.FAILED)],
)
def test_an_engine_that_cannot_start_says_why(start: object, reason: str, code: ExitCode) -> None:
    peer = Peer(program(start))
    failed = peer.receive_until(Failed)
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.refused) == (reason, code is ExitCode.REFUSED)
    assert peer.exit_code() == code
    peer.close()


PARENT = """
import multiprocessing, socket
from octavo_runtime.engine.process import run_engine_process
from tests.runtime.server.echo import program

if __name__ == "__main__":
    ours, theirs = socket.socketpair()
    engine = multiprocessing.get_context("spawn").Process(target=run_engine_process, args=(program(), theirs))
    engine.start()
    theirs.close()
    ours.recv(1)
    print(engine.pid, flush=True)
    ours.recv(1 << 20, socket.MSG_WAITALL)
"""


def test_an_engine_does_not_outlive_a_killed_http_process(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        engine = int(parent.stdout.readline())
        descriptor = os.pidfd_open(engine)
        parent.kill()
        parent.wait(WAIT_SECONDS)
    assert ended(descriptor)


def ended(descriptor: int) -> bool:
    """Whether the process behind a pidfd ends in time."""
    import select

    readable, _, _ = select.select([descriptor], [], [], WAIT_SECONDS)
    os.close(descriptor)
    return bool(readable)
