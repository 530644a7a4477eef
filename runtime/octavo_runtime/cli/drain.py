"""`octavo drain`: the preStop hook of a serving pod. Tells the server on this host to drain and waits until it has.

Standard library only: it starts in a moment in a container whose processors are busy with the last requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo_runtime.contract.container import DRAIN_ANNOUNCE_SECONDS, DRAIN_SECONDS, HTTP_PORT
from octavo_runtime.contract.endpoints import DRAIN
from octavo_runtime.contract.refused import Refused

POLL_SECONDS = 0.25
REQUEST_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Progress:
    """The server's answer to a drain request."""

    drained: bool
    in_flight: int


Ask = Callable[[], Progress | None]
"""Asks the server to drain; None when no server answers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, and how long to wait."""
    parser.add_argument("--port", type=int, default=HTTP_PORT, help=f"port of the server ({HTTP_PORT})")
    parser.add_argument(
        "--timeout-seconds",
        type=float,
        default=float(DRAIN_ANNOUNCE_SECONDS + DRAIN_SECONDS),
        metavar="S",
        help=f"wait at most this long ({DRAIN_ANNOUNCE_SECONDS + DRAIN_SECONDS})",
    )


def run(args: argparse.Namespace) -> int:
    """0 once the server has drained, is gone, or the time is over: the pod ends in any case."""
    message = drain(lambda: ask(args.port), args.timeout_seconds, time.monotonic, time.sleep)
    print(f"octavo drain: {message}", file=sys.stderr)
    return 0


def drain(ask_server: Ask, timeout_seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> str:
    """Ask until the server says that it has drained; returns how it ended, as a sentence."""
    deadline = clock() + timeout_seconds
    while True:
        progress = ask_server()
        if progress is None:
            return "no server answers; nothing to drain"
        if progress.drained:
            return "drained"
        if clock() >= deadline:
            return f"{progress.in_flight} requests still in flight after {timeout_seconds:g} s; leaving them"
        sleep(POLL_SECONDS)


def ask(port: int) -> Progress | None:
    """One POST to loopback; raises Refused when something else listens there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_SECONDS)
    try:
        connection.request("POST", DRAIN)
        response = connection.getresponse()
        body = json.loads(response.read(4096))
        return Progress(drained=bool(body["drained"]), in_flight=int(body["in_flight"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("DrainUnanswered", f"what listens on port {port} is no Octavo server") from error
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
