"""Watchdog: is the integrity check still speaking? A check that is silent finds nothing, which looks like health."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_kernels.formats.verdict import is_clean, reasons_of
from octavo_runtime.engine.violations import STALE


class Watchdog:
    """Stalled from the first time that the check did not speak until the next time that it did.

    In a step it has spoken when its launches were counted and at least one row has a verdict of this very step, clean
    or not. Between steps it is asked about a row without pages, whose verdict must be the step number.
    """

    def __init__(self) -> None:
        self.stalled = False
        self._launches = 0

    def saw_step(self, verdicts: Sequence[int], step: int, launches: int) -> None:
        """Note the verdicts of a step's rows (at least one) and the launches counted so far."""
        spoke = any(reasons_of(word, step) != STALE for word in verdicts)
        self.stalled = not spoke or launches <= self._launches
        self._launches = launches

    def saw_self_check(self, verdict: int, step: int, launches: int) -> None:
        """Note the verdict of a self-check under the number `step`."""
        self.stalled = not is_clean(verdict, step) or launches <= self._launches
        self._launches = launches
