"""`octavo drain`: asks, waits, and never holds a pod's end up longer than told."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from octavo_runtime.cli.drain import POLL_SECONDS, Progress, ask, drain
from octavo_runtime.contract.refused import Refused


class World:
    """A server that answers from a list, and a clock that moves only by sleeping."""

    def __init__(self, answers: Sequence[Progress | None]) -> None:
        self.answers = list(answers)
        self.now = 0.0

    def ask(self) -> Progress | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def drain(self, timeout_seconds: float) -> str:
        return drain(self.ask, timeout_seconds, lambda: self.now, self.sleep)


def test_it_waits_until_the_server_has_drained() -> None:
    world = World([Progress(drained=False, in_flight=2), Progress(drained=False, in_flight=1), Progress(True, 0)])
    assert world.drain(60) == "drained"
    assert world.now == 2 * POLL_SECONDS


def test_it_gives_up_when_the_time_is_over_and_says_what_was_left() -> None:
    world = World([Progress(drained=False, in_flight=3)])
    assert world.drain(2) == "3 requests still in flight after 2 s; leaving them"
    assert world.now == 2


def test_a_server_that_is_gone_is_drained() -> None:
    assert World([None]).drain(60) == "no server answers; nothing to drain"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers what its server was given."""

    def do_POST(self) -> None:
        assert self.path == "/drain"
        body = self.server.body  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Silence."""


@pytest.fixture
def listener() -> Iterator[http.server.HTTPServer]:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_it_reads_the_servers_answer(listener: http.server.HTTPServer) -> None:
    listener.body = json.dumps({"phase": "refusing", "in_flight": 4, "drained": False}).encode()  # type: ignore[attr-defined]
    assert ask(listener.server_port) == Progress(drained=False, in_flight=4)


def test_another_server_on_the_port_is_refused(listener: http.server.HTTPServer) -> None:
    listener.body = b"<html>hello</html>"  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=f"what listens on port {listener.server_port} is no Octavo server"):
        ask(listener.server_port)


def test_a_port_without_a_server_is_none(listener: http.server.HTTPServer) -> None:
    listener.server_close()
    assert ask(listener.server_port) is None


def test_it_imports_nothing_but_the_standard_library() -> None:
    """So that it starts in a moment: no torch, no pydantic, no numpy."""
    program = (
        "import sys; from octavo_runtime.cli.main import main; code = main(['drain', '--port', '1']); "
        "roots = {name.split('.')[0] for name in sys.modules}; "
        "print(sorted(roots - set(sys.stdlib_module_names) - {'octavo_runtime', '__main__'})); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import site; site.main()\n{program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert not loaded & {"torch", "pydantic", "numpy", "msgspec", "uvicorn", "starlette", "transformers"}
