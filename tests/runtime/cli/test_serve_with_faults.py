"""A server whose KV cache is damaged on purpose gives right answers or an error, never a wrong answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.runtime.cli.test_serve_end_to_end import TINY_MOE, WAIT_SECONDS, Command, free_port

PROMPTS = ["A process reads", "A process frees", "The kernel reads", "The kernel frees", "Each page is", "Who waits"]
ROUNDS = 6
FAULTS = ["--allow-fault-injection", "--inject-fault=wrong-page:0.03", "--inject-fault=wrong-row:0.02"]

pytestmark = pytest.mark.slow


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Command]:
    port, log = free_port(), folder / "log"
    argv = [sys.executable, "-m", "octavo_runtime.cli.main", "serve", str(TINY_MOE), f"--port={port}", *flags]
    environment = {**os.environ, "OCTAVO_TERMINATION_LOG": str(folder / "termination"), "OMP_NUM_THREADS": "1"}
    with (
        log.open("wb") as output,
        subprocess.Popen([*argv, "--host=127.0.0.1"], stdout=output, stderr=output, env=environment) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http,
    ):
        try:
            command = Command(process, http, log, port)
            command.wait_ready()
            yield command
        finally:
            process.kill()


def ask(server: Command, prompt: str) -> httpx.Response:
    body = {"model": "tiny-moe", "prompt": prompt, "temperature": 0, "max_tokens": 24}
    return server.http.post("/v1/completions", json=body)


def test_a_damaged_cache_never_gives_a_wrong_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        right = {prompt: ask(server, prompt).json()["choices"][0]["text"] for prompt in PROMPTS}
        assert server.http.get("/integrity").json()["violations"] == []
    with serving(tmp_path, *FAULTS) as server, ThreadPoolExecutor(len(PROMPTS)) as clients:
        asked = PROMPTS * ROUNDS
        answers = list(clients.map(lambda prompt: ask(server, prompt), asked))
        report = server.http.get("/integrity").json()
        ready = server.http.get("/ready").status_code
        metrics = server.http.get("/metrics").text
    refused = [answer for answer in answers if answer.status_code != httpx.codes.OK]
    for prompt, answer in zip(asked, answers, strict=True):
        if answer.status_code == httpx.codes.OK:
            assert answer.json()["choices"][0]["text"] == right[prompt]
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {
        (httpx.codes.INTERNAL_SERVER_ERROR, "kv_integrity_violation")
    }
    ended = [violation for violation in report["violations"] if violation["action"] == "cancelled"]
    assert len(ended) == len(refused) > 0
    assert all("binding" in violation["kind"] for violation in ended)
    assert f"octavo_kv_integrity_requests_cancelled_total {float(len(refused))}" in metrics
    assert ready == httpx.codes.OK, "violations alone never fail readiness"


def test_faults_are_refused_without_the_permission() -> None:
    argv = [sys.executable, "-m", "octavo_runtime.cli.main", "serve", str(TINY_MOE), FAULTS[1]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode != 0
    assert "--allow-fault-injection" in done.stderr
