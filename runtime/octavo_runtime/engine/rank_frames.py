"""What rank 0 says to the other ranks: typed msgpack, arrays as their own bytes; nothing is unpickled.

A frame is preceded by (VERSION, length in bytes), so ranks of two versions part with an error instead of guessing.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from octavo_runtime.engine.executor import DigestJob
from octavo_runtime.engine.host_step import HostStep
from octavo_runtime.kv.updates import DeviceUpdates

VERSION = 1
"""Grows with every change of a frame or of what is in it."""

FRAME_LIMIT_BYTES = 1 << 30
"""No step comes near; beyond it the peer speaks another protocol."""


class FrameError(ValueError):
    """A frame of another version, or one that says something else than its type."""


class Frame(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all frames; the tag is the class name."""


class Execute(Frame, frozen=True):
    """Run this step."""

    host: HostStep
    updates: DeviceUpdates
    digests: DigestJob


class SelfCheck(Frame, frozen=True):
    """Check a row without pages under this step number."""

    step: int


class Shutdown(Frame, frozen=True):
    """No step follows."""


AnyFrame = Execute | SelfCheck | Shutdown
_Packed = tuple[str, list[int], bytes]
"""dtype, shape and bytes of an array."""


def encode(frame: AnyFrame) -> bytes:
    """One frame as bytes."""
    return _encoder.encode(frame)


def decode(body: bytes) -> AnyFrame:
    """The frame in `body`; its arrays are fresh and may be written. Raises FrameError."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise FrameError(str(error)) from error


def check_header(version: int, length: int) -> None:
    """Raise FrameError unless a frame of `length` bytes of this version may follow."""
    if version != VERSION:
        raise FrameError(f"rank 0 speaks version {version} of the frames, this rank version {VERSION}")
    if not 0 < length <= FRAME_LIMIT_BYTES:
        raise FrameError(f"a frame of {length} bytes; at most {FRAME_LIMIT_BYTES} make sense")


def _pack(value: object) -> _Packed:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} has no place in a frame")
    return value.dtype.str, list(value.shape), value.tobytes()


def _unpack(kind: Any, packed: object) -> npt.NDArray[np.generic]:
    """`kind` is a numpy array type as the dataclasses of a frame write it."""
    dtype_name, shape, data = msgspec.convert(packed, _Packed)
    wanted = np.dtype(get_args(get_args(kind)[1])[0])
    if dtype_name != wanted.str:
        raise ValueError(f"an array of {dtype_name} where {wanted.str} belongs")
    return np.frombuffer(data, wanted).reshape(shape).copy()


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
_decoder = msgspec.msgpack.Decoder(AnyFrame, dec_hook=_unpack)
