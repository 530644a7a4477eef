"""What the operator was told at its start that decisions depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Options that change what is built."""

    runtime_image: str
    """Image of inspect and serving pods where spec.engine.image says nothing."""
