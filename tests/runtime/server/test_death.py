"""The end of either process is noticed by the other: errors and exit codes, never a hang. Real processes, one killed.

The limits are those of patience, not of the promise: what is promised (within a second) rests on sockets that close.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx
import pytest

from octavo_runtime.contract.termination import ExitCode
from tests.runtime.server.echo import HANG, HOLD
from tests.runtime.server.serving import MODEL, WAIT_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SCRIPT = """
import asyncio
from octavo_runtime.cli.serve import engine_ended
from octavo_runtime.server.run import Server, bind
from tests.runtime.server.echo import byte_codec, program
from tests.runtime.server.serving import SETTINGS

if __name__ == "__main__":
    sock = bind("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)
    ended = asyncio.run(Server(SETTINGS, program(), byte_codec).run(sock))
    raise SystemExit(0 if ended is None else engine_ended(ended))
"""


@dataclass
class Processes:
    """A server in a process of its own, and its engine."""

    server: subprocess.Popen[str]
    engine: int
    engine_end: int
    """A descriptor that can be read once the engine has ended."""
    http: httpx.Client

    def complete(self, prompt: str, *, stream: bool = False) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "stream": stream})

    def until_running(self, count: int) -> None:
        self._until(lambda: f"octavo_requests_running {count}.0" in self.http.get("/metrics").text.splitlines())

    def until_ready(self) -> None:
        self._until(lambda: self.http.get("/ready").status_code == 200)

    def engine_ended(self) -> bool:
        return bool(select.select([self.engine_end], [], [], WAIT_SECONDS)[0])

    def _until(self, condition: object) -> None:
        assert callable(condition)
        pause = Event()
        for _ in range(int(WAIT_SECONDS / 0.02)):
            with suppress(httpx.TransportError):
                if condition():
                    return
            pause.wait(0.02)
        raise AssertionError("waited in vain")


def engine_of(server: int) -> int:
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return next(int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())


@contextmanager
def started(directory: Path) -> Iterator[Processes]:
    script = directory / "server.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OCTAVO_TERMINATION_LOG": str(directory / "log")}
    (directory / "log").touch()
    argv = [sys.executable, str(script)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as server:
        assert server.stdout is not None
        with httpx.Client(base_url=f"http://127.0.0.1:{int(server.stdout.readline())}", timeout=WAIT_SECONDS) as http:
            processes = Processes(server, 0, -1, http)
            try:
                processes.until_ready()
                processes.engine = engine_of(server.pid)
                processes.engine_end = os.pidfd_open(processes.engine)
                yield processes
            finally:
                server.kill()
                if processes.engine_end >= 0:
                    processes.engine_ended()
                    os.close(processes.engine_end)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with started(tmp_path) as running:
        yield running


def test_a_killed_engine_is_an_error_to_every_open_request_and_a_failed_exit(processes: Processes) -> None:
    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(processes.complete, HOLD, stream=stream) for stream in (False, True, False)]
        processes.until_running(3)
        begun = pool.submit(processes.complete, "echo " + "x" * 8, stream=True)
        assert "[DONE]" in begun.result().text
        os.kill(processes.engine, signal.SIGKILL)
        answers = [one.result() for one in held]
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["error"]["code"] for answer in answers} == {"engine_dead"}
    assert processes.server.wait(WAIT_SECONDS) == ExitCode.FAILED


def test_a_killed_server_ends_its_engine(processes: Processes) -> None:
    processes.server.kill()
    assert processes.engine_ended()


def test_a_killed_server_ends_its_engine_even_within_a_step_that_never_returns(processes: Processes) -> None:
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(processes.complete, HOLD)
        processes.until_running(1)
        hangs = pool.submit(processes.complete, HANG)
        processes.http.get("/health")
        processes.server.kill()
        assert processes.engine_ended()
        for one in (held, hangs):
            assert isinstance(one.exception(WAIT_SECONDS), httpx.TransportError)
