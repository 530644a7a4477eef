"""A check that does not speak is told from one that finds nothing."""

from __future__ import annotations

from octavo_kernels.formats.verdict import UNCONCLUDED, Finding, word_of
from octavo_runtime.engine.watchdog import Watchdog


def test_clean_steps_are_no_stall() -> None:
    watchdog = Watchdog()
    assert not watchdog.stalled
    watchdog.saw_step([1, 1], step=1, launches=1)
    watchdog.saw_step([2], step=2, launches=2)
    assert not watchdog.stalled


def test_a_step_in_which_no_row_has_a_verdict_of_its_own_is_a_stall_until_the_next_good_one() -> None:
    for silent in (0, 6, UNCONCLUDED):
        watchdog = Watchdog()
        watchdog.saw_step([silent, silent], step=7, launches=1)
        assert watchdog.stalled
        watchdog.saw_step([8], step=8, launches=2)
        assert not watchdog.stalled


def test_a_row_that_is_not_clean_shows_that_the_check_speaks() -> None:
    watchdog = Watchdog()
    watchdog.saw_step([0, word_of(Finding.TAG)], step=3, launches=1)
    assert not watchdog.stalled


def test_a_step_without_a_launch_is_a_stall_whatever_its_verdicts() -> None:
    watchdog = Watchdog()
    watchdog.saw_step([1], step=1, launches=1)
    watchdog.saw_step([2], step=2, launches=1)
    assert watchdog.stalled


def test_a_self_check_has_to_give_the_number_it_was_asked_under() -> None:
    watchdog = Watchdog()
    stalled = []
    for verdict, step, launches in ((5, 5, 1), (5, 6, 2), (7, 7, 3), (8, 8, 3)):
        watchdog.saw_self_check(verdict, step, launches)
        stalled.append(watchdog.stalled)
    assert stalled == [False, True, False, True], "an old number, and a number without a launch, are a stall"
