"""The whole command as a user runs it, on the tiny trained model: from `octavo serve PATH` to a drained exit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx
import pytest

from octavo_runtime.contract.termination import ExitCode

TINY_MOE = Path(__file__).parents[3] / "e2e" / "models" / "tiny-moe"
WAIT_SECONDS = 180.0

pytestmark = pytest.mark.slow


@dataclass
class Command:
    """A running `octavo serve`."""

    process: subprocess.Popen[bytes]
    http: httpx.Client
    log: Path
    port: int

    def wait_ready(self) -> None:
        pause = Event()
        for _ in range(int(WAIT_SECONDS / 0.1)):
            assert self.process.poll() is None, self.log.read_text()
            try:
                if self.http.get("/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            pause.wait(0.1)
        raise AssertionError(self.log.read_text())

    def complete(self, prompt: str, **fields: object) -> str:
        body = {"model": "tiny-moe", "prompt": prompt, "temperature": 0, **fields}
        answer = self.http.post("/v1/completions", json=body)
        answer.raise_for_status()
        text: str = answer.json()["choices"][0]["text"]
        return text

    def engine(self) -> int:
        """Process id of the engine."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    port, log, last_word = free_port(), tmp_path / "log", tmp_path / "termination-log"
    last_word.touch()
    flags = [
        f"--port={port}",
        "--host=127.0.0.1",
        "--drain-announce-seconds=0",
        "--max-num-seqs=4",
        "--log-format=json",
    ]
    environment = {**os.environ, "OCTAVO_TERMINATION_LOG": str(last_word), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "octavo_runtime.cli.main", "serve", str(TINY_MOE), *flags]
    with (
        log.open("wb") as output,
        subprocess.Popen(argv, stdout=output, stderr=output, env=environment) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http,
    ):
        try:
            yield Command(process, http, log, port)
        finally:
            process.kill()


def test_a_model_is_served_from_start_to_drain(command: Command) -> None:
    command.wait_ready()
    alone = command.complete("The kernel of the", max_tokens=24)
    assert alone == command.complete("The kernel of the", max_tokens=24)
    metrics = command.http.get("/metrics").text.splitlines()
    assert 'octavo_kv_integrity_violations_total{reason="binding"} 0.0' in metrics
    assert any(line.startswith("octavo_kernel_info{") for line in metrics)

    body = {"model": "tiny-moe", "messages": [{"role": "user", "content": "What is a process?"}], "stream": True}
    with command.http.stream("POST", "/v1/chat/completions", json=body | {"max_tokens": 40}) as response:
        lines = (line for line in response.iter_lines() if line)
        first = next(lines)
        command.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    assert rest[-1] == "data: [DONE]", "an open stream is finished, not cut"
    assert command.process.wait(WAIT_SECONDS) == ExitCode.OK


def test_a_killed_engine_ends_the_server_with_its_reason(command: Command, tmp_path: Path) -> None:
    command.wait_ready()
    os.kill(command.engine(), signal.SIGKILL)
    assert command.process.wait(WAIT_SECONDS) == ExitCode.FAILED
    report = json.loads((tmp_path / "termination-log").read_text())
    assert report["refusal"]["reason"] == "EngineDied"
    assert report["refusal"]["retryable"]
