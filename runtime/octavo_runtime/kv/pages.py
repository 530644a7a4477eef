"""PageBook: the host's facts about each page, and what must hold among them.

    home        references   tag    writer                  kept by the prefix cache
    NULL        0            0      NULL                    no      page 0 only
    FREE        0            odd    NULL                    no
    LIVE        1 or more    even   a nonce, or SHARED      only when SHARED and full
    RETAINED    0            even   SHARED                  yes, and full
    SET_ASIDE   0            odd    NULL                    no

Home, references, tag and writer say the same thing in several ways on purpose: a page whose facts contradict each other
was changed by something that is not the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

NULL_PAGE = 0
WRITER_NULL = 0
"""No request may write: free pages and the NULL page."""
WRITER_SHARED = -1
"""Read-only: the page is in the prefix cache or shared by forks."""

FIRST_FREE_TAG = 1
TAGS = 1 << 32


class Home(IntEnum):
    """Where a page is; each is in exactly one place."""

    NULL = 0
    FREE = 1
    LIVE = 2
    RETAINED = 3
    """Only the prefix cache keeps it."""
    SET_ASIDE = 4
    """Never reused while this process lives, because a violation touched it."""


class HostReason(StrEnum):
    """What the host's own books contradict."""

    NULL_PAGE = "host_null_page"
    HOME = "host_home"
    """Free list, home and references do not agree on where the page is: a double free, two owners."""
    REFERENCES = "host_references"
    TAG = "host_tag"
    WRITER = "host_writer"
    FILL = "host_fill"
    PAIR = "host_pair"
    """A request or the prefix cache keeps a pair that is no right any more: use after free, a stale entry."""


@dataclass(frozen=True)
class HostFinding:
    """One page that the host's books are wrong about (L0 of the defence)."""

    page: int
    reason: HostReason


class PageBook:
    """The facts, one list each, indexed by page; `PagePool` is their only writer."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.home = [Home.NULL] + [Home.FREE] * (num_pages - 1)
        self.tag = [0] + [FIRST_FREE_TAG] * (num_pages - 1)
        self.logical = [0] * num_pages
        self.writer = [WRITER_NULL] * num_pages
        self.fill = [0] * num_pages
        self.refs = [0] * num_pages
        self.kept = [False] * num_pages
        self._count = {Home.NULL: 1, Home.FREE: num_pages - 1, Home.LIVE: 0, Home.RETAINED: 0, Home.SET_ASIDE: 0}

    def count(self, home: Home) -> int:
        """Pages in that home."""
        return self._count[home]

    def move(self, page: int, home: Home) -> None:
        """Give the page another home."""
        self._count[self.home[page]] -= 1
        self._count[home] += 1
        self.home[page] = home

    def next_tag(self, page: int) -> int:
        """Bump the page's tag; past 2**32 - 1 it goes on at 2, because (page, 0) means nothing and 1 means new."""
        tag = self.tag[page] + 1
        self.tag[page] = tag if tag < TAGS else 2
        return self.tag[page]

    def blank(self, page: int) -> None:
        """Nobody's page: no writer, no place, no tokens."""
        self.logical[page], self.writer[page], self.fill[page] = 0, WRITER_NULL, 0

    def is_right(self, page: int, tag: int) -> bool:
        """Whether the pair (page, tag) is a right that somebody holds: the page's tag still equals it."""
        return 0 < page < self.num_pages and self.tag[page] == tag and self.home[page] is Home.LIVE

    def is_readable(self, page: int, tag: int) -> bool:
        """Whether the pair may be handed out from the prefix cache."""
        return 0 < page < self.num_pages and self.tag[page] == tag and self.kept[page]

    def contradiction(self, page: int) -> HostReason | None:
        """The first fact of `page` that contradicts its home."""
        home, tag, refs, writer = self.home[page], self.tag[page], self.refs[page], self.writer[page]
        if (page == NULL_PAGE) != (home is Home.NULL):
            return HostReason.NULL_PAGE
        if home is Home.NULL:
            return HostReason.NULL_PAGE if (tag, refs, writer, self.kept[page]) != (0, 0, WRITER_NULL, False) else None
        if (refs > 0) != (home is Home.LIVE) or refs < 0:
            return HostReason.REFERENCES
        used = home in {Home.LIVE, Home.RETAINED}
        if (tag % 2 == 0) != used or not 0 < tag < TAGS:
            return HostReason.TAG
        if (writer == WRITER_NULL) == used or ((self.kept[page] or home is Home.RETAINED) and writer != WRITER_SHARED):
            return HostReason.WRITER
        if self.kept[page] != (home is Home.RETAINED) and not (self.kept[page] and home is Home.LIVE):
            return HostReason.HOME
        if not 0 <= self.fill[page] <= self.page_size or (self.kept[page] and self.fill[page] != self.page_size):
            return HostReason.FILL
        return None
