"""FaultKind: what `--inject-fault` can do to the KV cache. F numbers as in docs/integrity.md. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_RATE = 0.01


class FaultKind(StrEnum):
    """Faults that the KV integrity check claims to see in the step that would read or write them."""

    WRONG_PAGE = "wrong-page"
    """F1: another request's page id in the row, the tag left as it was."""
    WRONG_PAIR = "wrong-pair"
    """F1: another request's whole (page, tag) pair."""
    WRONG_ROW = "wrong-row"
    """F1: the whole row of another request."""
    PERMUTED_PAGES = "permuted-pages"
    """F1: the request's own pages in another order."""
    USE_AFTER_FREE = "use-after-free"
    """F2: a page goes back to the free list while a request still reads it."""
    TWO_OWNERS = "two-owners"
    """F3: a page that a request holds is given to another one as well."""
    DOUBLE_FREE = "double-free"
    """F3: a live page stands in the free list."""
    STALE_WRITE = "stale-write"
    """F4: a store of this request lands where another request's page is now."""
    READ_BEFORE_READY = "read-before-ready"
    """F6: a row reads tokens whose keys and values were never stored."""
    STALE_PREFIX = "stale-prefix"
    """F7: the prefix cache returns a page that was evicted and has another content since."""
    INCOMPLETE_PUBLISH = "incomplete-publish"
    """F9: a page enters the prefix cache before it is full."""
    OUT_OF_RANGE = "out-of-range"
    """F15: a page id outside the pool."""
    PADDING_WRITE = "padding-write"
    """F16: a padding row points at a real page instead of the NULL page."""
    CHECK_SKIPPED = "check-skipped"
    """The check kernel is not launched for one step."""


@dataclass(frozen=True)
class FaultPlan:
    """One kind and how often: `rate` is the chance of a fault in each step that offers a victim."""

    kind: FaultKind
    rate: float = DEFAULT_RATE
