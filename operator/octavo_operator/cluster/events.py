"""Events (events.k8s.io/v1): what changed, for `kubectl describe` and for people who are paged.

An event is written when a condition changes, so a settled cluster writes none; the same event is not repeated within
ten minutes even when a condition flaps. A lost event is logged and forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from octavo_operator.api import labels
from octavo_operator.api.digest import digest
from octavo_operator.cluster.client import Api
from octavo_operator.cluster.errors import ApiError
from octavo_operator.cluster.kinds import EVENTS

NOTE_LIMIT = 1024
REPEAT_SECONDS = 600.0
REMEMBERED = 4096
TERMINATING = "is being terminated"
"""The API server's words about a namespace that is going: its events go too, and nobody misses them."""
CONTROLLER = f"{labels.GROUP}/operator"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Announcement:
    """What an event says."""

    reason: str
    note: str
    action: str
    """What was being done, in CamelCase: the condition's type."""
    warning: bool


class Recorder(Protocol):
    """Where announcements go."""

    async def publish(self, regarding: Mapping[str, Any], announcement: Announcement) -> None:
        """Write an event about an object; never raises for a failed write."""


class EventRecorder:
    """Writes events through the API server."""

    def __init__(self, api: Api, instance: str, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._instance = instance[:128]
        self._monotonic = monotonic
        self._written: dict[str, float] = {}

    async def publish(self, regarding: Mapping[str, Any], announcement: Announcement) -> None:
        """Write the event unless the same one was written a moment ago."""
        metadata = regarding["metadata"]
        same = digest([metadata["uid"], announcement.reason, announcement.note])
        now = self._monotonic()
        if now - self._written.get(same, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        self._remember(same, now)
        try:
            await self._api.create(EVENTS, self._event(regarding, announcement, same))
        except ApiError as error:
            level = logging.DEBUG if TERMINATING in error.message else logging.WARNING
            logger.log(level, "event lost", extra={"model": metadata["name"], "error": str(error)})

    def _remember(self, same: str, now: float) -> None:
        self._written.pop(same, None)
        self._written[same] = now
        while len(self._written) > REMEMBERED:
            del self._written[next(iter(self._written))]

    def _event(self, regarding: Mapping[str, Any], announcement: Announcement, same: str) -> dict[str, Any]:
        metadata = regarding["metadata"]
        moment = datetime.now(UTC)
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.name,
            "metadata": {
                "name": f"{metadata['name']}.{same}.{moment.timestamp():.6f}".replace(".", "-"),
                "namespace": metadata["namespace"],
            },
            "eventTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": announcement.action,
            "reason": announcement.reason,
            "note": announcement.note[:NOTE_LIMIT],
            "type": "Warning" if announcement.warning else "Normal",
            "regarding": {
                "apiVersion": labels.API_VERSION,
                "kind": labels.KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
        }
