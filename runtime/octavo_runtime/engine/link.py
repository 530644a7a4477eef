"""The engine's end of the socket to the HTTP process.

A thread of its own reads, so that the end of the HTTP process is seen at once and in the middle of a step: a socket at
its end means that nobody waits for answers any more, and the process ends there and then.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable

import msgspec

from octavo_runtime.engine.messages import (
    Cancel,
    FrameSplitter,
    Message,
    ProtocolError,
    Shutdown,
    Submit,
    encode,
    to_engine,
)

_READ_BYTES = 1 << 16


class PeerGone(Exception):
    """The HTTP process is dead or speaks another protocol."""


class Link:
    """Messages to and from the HTTP process. `send` and `take` belong to the engine's loop, one thread."""

    def __init__(self, sock: socket.socket, on_gone: Callable[[], None]) -> None:
        """Start reading. `on_gone` is called once, in the reading thread, when the peer is gone."""
        self._sock = sock
        self._on_gone = on_gone
        self._inbox: queue.SimpleQueue[Submit | Cancel | Shutdown] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="octavo-link", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send one message; raises PeerGone."""
        try:
            self._sock.sendall(encode(message))
        except OSError as error:
            raise PeerGone(str(error)) from error

    def take(self, wait_seconds: float) -> list[Submit | Cancel | Shutdown]:
        """All messages that have arrived; waits for the first one up to `wait_seconds`."""
        messages: list[Submit | Cancel | Shutdown] = []
        try:
            messages.append(self._inbox.get(wait_seconds > 0, wait_seconds or None))
            while True:
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            return messages

    def _read(self) -> None:
        splitter = FrameSplitter()
        try:
            while data := self._sock.recv(_READ_BYTES):
                for body in splitter.feed(data):
                    self._inbox.put(to_engine.decode(body))
        except (OSError, ProtocolError, msgspec.MsgspecError):
            pass  # a reset or nonsense: the peer is as gone as at a clean end
        self._on_gone()
