"""What GET /integrity answers: the mode, the counters, and the violations that the engine told of."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import QueryParams

from octavo_runtime.contract.integrity import IntegrityMode
from octavo_runtime.engine.messages import EngineStats, Violation
from octavo_runtime.server.errors import bad_request

VIOLATIONS_KEPT = 1000

Json = dict[str, object]


@dataclass
class RecentViolations:
    """The last `VIOLATIONS_KEPT` violations, and how many there were in all."""

    count: int = 0
    _kept: deque[Violation] = field(default_factory=lambda: deque(maxlen=VIOLATIONS_KEPT))

    def add(self, violations: Sequence[Violation]) -> None:
        """Take what a step brought, oldest first."""
        self.count += len(violations)
        self._kept.extend(violations)

    @property
    def last(self) -> Violation | None:
        """The newest one."""
        return self._kept[-1] if self._kept else None

    def after(self, id: int) -> Iterable[Violation]:  # noqa: A002
        """Those kept whose id is greater, oldest first."""
        return (one for one in self._kept if one.id > id)


def integrity_report(
    mode: IntegrityMode, engine_started: float, stats: EngineStats | None, recent: RecentViolations, after: int
) -> Json:
    """The body of GET /integrity.

    Ids count from 1 in the life of one engine, which `engine_started` (Unix seconds) tells from its successor's: a
    reader that sees another one asks again without `after`. A first id beyond `after` + 1 means that older ones are
    no longer kept.
    """
    return {
        "mode": mode.value,
        "engine_started": engine_started,
        "stalled": stats is not None and stats.integrity_stalled,
        "checks": 0 if stats is None else stats.integrity_checks,
        "violations_total": {} if stats is None else dict(sorted(stats.integrity_violations.items())),
        "violations": [_item(one) for one in recent.after(after)],
    }


def doubt(stats: EngineStats | None, recent: RecentViolations, unready_after: int | None) -> str | None:
    """Why a server whose engine lives should get no new requests; None while there is no reason."""
    if stats is not None and stats.integrity_stalled:
        return "integrity check stalled"
    if unready_after is not None and recent.count >= unready_after:
        return f"{recent.count} integrity violations (--unready-after-violations {unready_after})"
    return None


def after_of(query: QueryParams) -> int:
    """The id in `?after=ID`; 0, before the first one, where it is left out. Raises ApiError 400."""
    unknown = next((name for name in query if name != "after"), None)
    if unknown is not None:
        raise bad_request(f"{unknown} is no parameter of /integrity; it takes after=ID", unknown)
    given = query.getlist("after") or ["0"]
    if len(given) > 1 or not re.fullmatch(r"[0-9]{1,18}", given[0]):
        shown = " and ".join(repr(value) for value in given)
        raise bad_request(f"after must be the id of one violation, a whole number; got {shown:.80}", "after")
    return int(given[0])


def _item(one: Violation) -> Json:
    return {
        "id": one.id,
        "time": one.time,
        "step": one.step,
        "kind": ",".join(one.reasons),
        "site": one.site,
        "request": one.request,
        "pages": list(one.pages),
        "action": one.action,
    }
