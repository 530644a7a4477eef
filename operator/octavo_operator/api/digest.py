"""Short hashes of JSON documents: equal content, equal hash, whatever the order of the keys."""

from __future__ import annotations

import hashlib
import json
from typing import Any

LENGTH = 12
"""Hex digits: 48 bits, and short enough for label values and object names."""


def digest(document: Any, length: int = LENGTH) -> str:
    """The first `length` hex digits of the SHA-256 of canonical JSON."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
