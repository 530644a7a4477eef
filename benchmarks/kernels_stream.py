"""What memory can do on this machine, in the same run as everything that is held against it."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
import timeit
from pathlib import Path

import torch

from benchmarks.kernels_arms import Arm, Times, take_turns
from octavo_kernels.cpu import library
from octavo_kernels.cpu.build import FLAGS

SOURCE = Path(__file__).with_name("kernels_read.c")
PART_BYTES, PARTS = 16 << 20, 24
"""One read, about as long as one MoE layer of a token, and how many follow each other: 384 MB in all."""


@functools.cache
def _compiled() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "read.so"
        argv = ["cc", *FLAGS, *library.load().variant.flags, str(SOURCE), "-o", str(target)]
        subprocess.run(argv, check=True, timeout=60)
        return ctypes.CDLL(str(target))


def _call(name: str, *arguments: torch.Tensor | int) -> None:
    values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
    function = getattr(_compiled(), name)
    function.restype = None
    function(*(ctypes.c_int64(value) for value in values), ctypes.c_int64(torch.get_num_threads()))


def read_arm() -> Arm:
    """Read the next part of a large piece of memory."""
    memory, total = torch.ones(PART_BYTES * PARTS + 64, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    start = -memory.data_ptr() % 64

    def read(turn: int) -> None:
        offset = start + turn % PARTS * PART_BYTES
        _call("streaming_read", memory[offset : offset + PART_BYTES], PART_BYTES, total)

    return Arm(read, PART_BYTES)


def measure_conversion(rounds: int) -> dict[str, Times]:
    """FP8 to float32 out of cache against writing and reading the same bytes with nothing in between.

    Both read one byte and write four per element.
    """
    count = 4 << 20
    codes = torch.randint(0, 0x7F, (8, count), dtype=torch.uint8)
    floats = torch.zeros(4, count)

    def convert(turn: int) -> None:
        library.load().call("fp8_to_float", codes[turn % 8], floats[turn % 4], count)

    def move(turn: int) -> None:
        _call("streaming_widen", codes[turn % 8], floats[turn % 4], count)

    return take_turns({"convert": Arm(convert, 5 * count), "memory": Arm(move, 5 * count)}, rounds)


def call_microseconds() -> float:
    """Of a C function that does nothing, called as every kernel is."""
    out, call = torch.zeros(1, dtype=torch.int64), library.load().call
    return min(timeit.repeat(lambda: call("linear_lanes", out), number=1000, repeat=5)) * 1e3
