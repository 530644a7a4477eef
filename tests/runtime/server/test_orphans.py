"""Orphans are collected; our own children are left to those who wait for them."""

from __future__ import annotations

import os
import subprocess
import sys

from octavo_runtime.server.orphans import collect, collect_orphans


def ended_child() -> subprocess.Popen[bytes]:
    """A child that has ended and that nobody has waited for yet."""
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


def test_ended_children_are_collected_but_for_our_own() -> None:
    child = ended_child()
    assert collect(lambda: {child.pid}) == 0
    assert child.wait(60) == 0
    other = ended_child()
    assert collect(set) == 1
    assert other.wait(60) == 0, "Popen finds it collected already"
    assert collect(set) == 0


async def test_a_process_that_is_not_the_first_adopts_nobody() -> None:
    child = ended_child()
    await collect_orphans(set)
    assert child.wait(60) == 0
