"""`/healthz` and `/readyz` on a thread of their own: a control loop that hangs cannot answer for itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STALL_SECONDS = 60.0
"""A control loop that has not come round for so long is dead."""
SOCKET_TIMEOUT_SECONDS = 5.0


class Health:
    """What the control loop says of itself; written by it, read by the probes' thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._beat = monotonic()
        self._ready = False

    def beat(self) -> None:
        """The control loop came round."""
        self._beat = self._monotonic()

    def set_ready(self, ready: bool) -> None:
        """Whether caches are primed and workers run."""
        self._ready = ready

    def alive(self) -> tuple[bool, str]:
        """Liveness: (whether, what to say)."""
        silence = self._monotonic() - self._beat
        if silence > STALL_SECONDS:
            return False, f"the control loop has been silent for {silence:.0f} s"
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """Readiness: (whether, what to say)."""
        return (True, "ok") if self._ready else (False, "caches are not primed yet")


def serve_probes(health: Health, port: int, host: str = "") -> ThreadingHTTPServer:
    """Answer probes until `shutdown()`; port 0 takes any free one. Raises OSError when the port is taken."""
    answers = {"/healthz": health.alive, "/readyz": health.ready}

    class Handler(BaseHTTPRequestHandler):
        timeout = SOCKET_TIMEOUT_SECONDS

        def do_GET(self) -> None:
            check = answers.get(self.path.partition("?")[0])
            good, text = (False, "no such path") if check is None else check()
            self.send_response(404 if check is None else 200 if good else 503)
            body = f"{text}\n".encode()
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            """Probes are not news."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server
