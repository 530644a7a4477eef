"""While a model loads, memory that is freed goes back to the system at once.

glibc keeps freed blocks of up to 32 MiB for itself once it has seen one freed. A layer that exists twice while it is
repacked then leaves holes that nothing fits into, and the peak is two layers instead of one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

M_MMAP_THRESHOLD = -3
"""From malloc.h."""
LOADING_BYTES = 1 << 20
"""Blocks from this size on are mapped one by one while loading."""
SERVING_BYTES = 32 << 20
"""Afterwards: where glibc's own adjustment ends; temporaries of a step are reused, not mapped anew."""


@contextmanager
def freed_at_once() -> Iterator[None]:
    """For the time of a `with` block; does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_THRESHOLD, LOADING_BYTES)
    try:
        yield
    finally:
        mallopt(M_MMAP_THRESHOLD, SERVING_BYTES)
