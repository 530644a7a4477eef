"""What the KV integrity check found, and its record: numbered, dated, counted by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from octavo_kernels.formats.verdict import Finding, findings_of, reasons_of, word_of
from octavo_runtime.engine.messages import VIOLATION_PAGES, Violation
from octavo_runtime.engine.request import EngineRequest

PADDING_WORD = word_of(Finding.RANGE)
"""The only verdict that a padding row may have: the check ran and found nothing, the store was refused."""

STALE = ("stale_verdict",)
"""Reasons of a row about which the check has said nothing in its step."""

_OF_WRITES = Finding.WRITER | Finding.SLOT


class Site(StrEnum):
    """Which layer of the defence spoke."""

    HOST = "host"
    TABLE = "table"
    WRITE = "write"
    DIGEST = "digest"
    RANK = "rank"


class Action(StrEnum):
    """What followed."""

    CANCELLED = "cancelled"
    RECOMPUTED = "recomputed"
    REPORTED = "reported"
    NONE = "none"
    """Nobody's request is concerned."""


@dataclass(frozen=True)
class Found:
    """One finding about one request, or about nobody's."""

    site: Site
    reasons: tuple[str, ...]
    request: EngineRequest | None = None
    pages: tuple[int, ...] = ()
    """What the finding names; by default all pages of the request."""

    @property
    def against_pages(self) -> bool:
        """Whether it says anything against pages. A check that did not speak does not: were they set aside, leaving it
        out once would cost every page that is in use."""
        return self.reasons != STALE


def found_in_verdict(word: int, step: int, request: EngineRequest) -> Found:
    """A row whose verdict is not clean. What only a refused store says is of the write, all else of the table."""
    findings = findings_of(word, step)
    site = Site.WRITE if findings and not findings & ~_OF_WRITES else Site.TABLE
    return Found(site, reasons_of(word, step), request)


def found_in_padding(word: int, step: int) -> Found | None:
    """A padding row that is anything but checked clean and refused by the write."""
    if word == PADDING_WORD:
        return None
    return Found(Site.WRITE, reasons_of(word, step) or ("padding",))


@dataclass
class ViolationLog:
    """Numbers and counts violations; `wall_clock` gives Unix seconds."""

    wall_clock: Callable[[], float]
    total: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)

    def record(self, found: Found, step: int, action: Action) -> Violation:
        """The record of one finding; call it while the request still holds its pages."""
        self.total += 1
        self.by_reason.update(found.reasons)
        request, pages = found.request, found.pages
        if not pages and request is not None and request.holding is not None:
            pages = tuple(request.holding.pages[:VIOLATION_PAGES])
        return Violation(
            id=self.total,
            time=self.wall_clock(),
            step=step,
            site=found.site,
            reasons=found.reasons,
            request="" if request is None else request.id,
            pages=pages[:VIOLATION_PAGES],
            action=action,
        )
