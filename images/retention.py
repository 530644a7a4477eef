"""Old images go, so that a machine on which the product is developed does not fill up.

A dependency layer has gigabytes; the registry, the engine and every node keep one. The last few images stay, because a
running Deployment may still name one of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from images.engines import Engine
from images.reference import Reference
from images.registry import Registry

KEPT = 5
"""Images of one repository: a frozen plan may hold on to an older one while its successor is tried."""


GARBAGE_MARK = "has-garbage"
"""File in the registry's storage: an image was deleted, so layers can be freed at its next start."""


def superseded(pushed: Sequence[str], newest: str, kept: int = KEPT) -> tuple[list[str], list[str]]:
    """The tags to keep, oldest first, and those to forget, when `newest` is pushed after `pushed`."""
    order = [*(tag for tag in pushed if tag != newest), newest]
    return order[-kept:], order[:-kept]


def retain(history: Path, newest: Reference, registry: Registry, engine: Engine, storage: Path) -> None:
    """Note that `newest` was pushed, and forget what that makes too old; `storage` is the local registry's folder.

    Raises:
        ImageError: the registry refuses.
    """
    known = _read(history)
    keep, forget = superseded(known.get(newest.repository, []), newest.tag)
    in_use = {registry.digest(_tagged(newest, tag)) for tag in keep}
    for tag in forget:
        old = _tagged(newest, tag)
        digest = registry.digest(old)
        if digest is not None and digest not in in_use:  # two tags may name one image
            registry.delete(old, digest)
            (storage / GARBAGE_MARK).touch()
        engine.forget(str(old))
    history.parent.mkdir(parents=True, exist_ok=True)
    fresh = history.with_suffix(".new")
    fresh.write_text(json.dumps({**known, newest.repository: keep}, indent=1))
    fresh.replace(history)


def _tagged(image: Reference, tag: str) -> Reference:
    return Reference(image.host, image.repository, tag)


def _read(history: Path) -> dict[str, list[str]]:
    try:
        known = json.loads(history.read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): [str(tag) for tag in tags] for name, tags in known.items()} if isinstance(known, dict) else {}
