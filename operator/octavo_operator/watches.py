"""kopf as a watcher: list-and-watch streams with reconnects, and nothing else of it.

`on.event` only. Its high-level handlers, timers and daemons keep state in finalizers and annotations, and its index
makes the start quadratic. Namespace and CRD watching are off: fewer permissions, and what we watch is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from octavo_operator.api.labels import MODEL
from octavo_operator.cluster.kinds import CHILDREN, Kind
from octavo_operator.feed import Feed

SERVER_TIMEOUT_SECONDS = 300
CLIENT_TIMEOUT_SECONDS = 330
CONNECT_TIMEOUT_SECONDS = 10
REQUEST_TIMEOUT_SECONDS = 30
PAGE_SIZE = 500
EXIT_SECONDS = 20
"""Below a pod's termination grace period of 30 s."""


def watch_settings() -> kopf.OperatorSettings:
    """kopf's settings: time limits everywhere, no events posted, no scanning, no peering."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = SERVER_TIMEOUT_SECONDS
    settings.watching.client_timeout = CLIENT_TIMEOUT_SECONDS
    settings.watching.connect_timeout = CONNECT_TIMEOUT_SECONDS
    settings.watching.chunk_size = PAGE_SIZE
    settings.networking.request_timeout = REQUEST_TIMEOUT_SECONDS
    settings.networking.error_backoffs = [0.5, 1, 2, 4]
    settings.process.ultimate_exiting_timeout = EXIT_SECONDS
    for kind in CHILDREN:
        selector = (kind.group, kind.version, kind.plural) if kind.group else (kind.version, kind.plural)
        settings.watching.label_selectors[selector] = MODEL
    return settings


def watch_registry(
    kinds: tuple[Kind, ...], feed: Feed, login: Callable[[], kopf.ConnectionInfo]
) -> kopf.OperatorRegistry:
    """Handlers that pass every event of `kinds` to `feed`."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def authenticate(**_: Any) -> kopf.ConnectionInfo:
        return login()

    for kind in kinds:
        _watch(registry, kind, feed)
    return registry


def _watch(registry: kopf.OperatorRegistry, kind: Kind, feed: Feed) -> None:
    async def observe(event: kopf.RawEvent, **_: Any) -> None:
        feed.observe(kind, event["type"], dict(event["object"]))

    kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"observe-{kind.plural}")(observe)
