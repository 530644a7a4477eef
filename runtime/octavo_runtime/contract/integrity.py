"""IntegrityMode: what a KV integrity violation leads to."""

from __future__ import annotations

from enum import StrEnum


class IntegrityMode(StrEnum):
    """Chosen with `--kv-integrity`."""

    ENFORCE = "enforce"
    """The token is dropped, the request recomputed once or ended."""
    REPORT = "report"
    """It is counted and logged, the token is delivered."""
    OFF = "off"
    """Nothing is checked."""
