"""The verdict word: one int32 per row and step that says whether the row's token may leave the process.

    0              nothing checked this row in this step
    step (> 0)     clean: checked before the first attention read, every store of every layer accepted, pages filled
    negative       UNCONCLUDED | findings: checked but not concluded, and what was found

Only the exact step number is clean; a verdict that is absent, stale, zero or negative is a violation (fail closed).
The findings are there for the report; nobody decides on them.
"""

from __future__ import annotations

from enum import IntFlag

UNCONCLUDED = -(1 << 31)
"""The sign bit. Every word with a finding carries it, so that no set of findings can equal a step number."""


class Finding(IntFlag):
    """What the integrity check and the KV write can find; bits of a verdict word."""

    RANGE = 1
    """A page id outside the pool, the NULL page, or no page where the row needs one."""
    TAG = 2
    """The page's generation is not the one that the request was given."""
    LOGICAL = 4
    """The page is another part of a request than the entry's place in the row says."""
    FILL = 8
    """The page holds fewer tokens than the row reads."""
    BINDING = 16
    """The row is not the one that the allocator built for this request."""
    WRITER = 32
    """A store into a page that this request may not write; it was not done."""
    SLOT = 64
    """A store outside the row's pages, or below the fill mark of an append-only page; it was not done."""


def word_of(findings: Finding) -> int:
    """The verdict word that carries these findings.

    By way of a plain int: `|` of a negative int and an IntFlag is an IntFlag, which has no sign bit.
    """
    return UNCONCLUDED | int(findings)


def is_clean(word: int, step: int) -> bool:
    """Whether a row with this verdict word may give its token to the request; `step` counts from 1."""
    return step > 0 and word == step


def findings_of(word: int, step: int) -> Finding:
    """What a word that is not clean reports; no bits when the check is absent, stale or was not concluded."""
    if is_clean(word, step) or word >= 0:
        return Finding(0)
    return Finding(word & ~UNCONCLUDED & sum(Finding))


def reasons_of(word: int, step: int) -> tuple[str, ...]:
    """Lower-case names for metrics and messages; `stale_verdict` where no check spoke. Empty for a clean row."""
    if is_clean(word, step):
        return ()
    names = tuple(str(finding.name).lower() for finding in findings_of(word, step))
    return names or ("stale_verdict",)
