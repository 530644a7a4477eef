"""Settings of the hub's client that Octavo chooses, made before it is imported: it reads its environment only then."""

from __future__ import annotations

import os
from pathlib import Path


def prepare_hub_environment(cache: Path | None = None) -> None:
    """Turn telemetry off, and keep the client's caches under `cache` where the home directory cannot be written to.

    What the user has set stays. A pod with a read-only root file system has no writable home.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if cache is not None and not _home_is_writable():
        os.environ.setdefault("HF_HOME", str(cache))


def _home_is_writable() -> bool:
    try:
        return os.access(Path.home(), os.W_OK)
    except RuntimeError:  # a user without an entry in /etc/passwd
        return False
