"""The protocol between the two processes: frames, and the engine's end of the socket."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.engine.link import Link, PeerGone
from octavo_runtime.engine.messages import (
    FRAME_LIMIT_BYTES,
    Cancel,
    FrameSplitter,
    ProtocolError,
    Sampling,
    Shutdown,
    Submit,
    encode,
    frame_length,
    to_engine,
)

WAIT_SECONDS = 30.0
SUBMIT = Submit("r1", [1, 2, 3], 7, Sampling(temperature=0.5, top_p=0.9, top_k=40, seed=2**32 - 1), [0])


@given(st.lists(st.sampled_from([SUBMIT, Cancel("r1"), Shutdown()]), max_size=6), st.integers(1, 64))
def test_messages_survive_any_cut_of_the_stream(messages: list[Submit | Cancel | Shutdown], size: int) -> None:
    stream = b"".join(encode(message) for message in messages)
    splitter = FrameSplitter()
    bodies = [body for at in range(0, len(stream), size) for body in splitter.feed(stream[at : at + size])]
    assert [to_engine.decode(body) for body in bodies] == messages


def test_a_frame_that_is_too_long_is_another_protocol() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        frame_length(struct.pack("<I", FRAME_LIMIT_BYTES + 1))


def test_unknown_messages_and_fields_are_refused() -> None:
    for document in ({"type": "Reboot"}, {"type": "Cancel", "request": "r", "why": "x"}, {"type": "Cancel"}):
        with pytest.raises(msgspec.ValidationError):
            to_engine.decode(msgspec.msgpack.encode(document))


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_link_takes_messages_in_order(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    link = Link(theirs, on_gone=lambda: None)
    ours.sendall(encode(SUBMIT) + encode(Cancel("r1")))
    taken = link.take(WAIT_SECONDS)
    if len(taken) == 1:
        taken += link.take(WAIT_SECONDS)
    assert taken == [SUBMIT, Cancel("r1")]
    assert link.take(0) == []


@pytest.mark.parametrize("last_words", [b"", b"\xff\xff\xff\xff", struct.pack("<I", 1) + b"\xc1"])
def test_a_peer_that_ends_or_talks_nonsense_is_gone(
    sockets: tuple[socket.socket, socket.socket], last_words: bytes
) -> None:
    ours, theirs = sockets
    gone = threading.Event()
    Link(theirs, on_gone=gone.set)
    assert not gone.is_set()
    ours.sendall(last_words)
    ours.shutdown(socket.SHUT_WR)
    assert gone.wait(WAIT_SECONDS)


def test_sending_to_a_peer_that_is_gone_says_so(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    link = Link(theirs, on_gone=lambda: None)
    ours.close()
    with pytest.raises(PeerGone):
        link.send(Cancel("r1"))
