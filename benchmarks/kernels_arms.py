"""Arms that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """What one arm took, round by round."""

    seconds: tuple[float, ...]
    bytes_moved: int = 0
    """By one call, where the arm is about moving bytes."""

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def best_rate(self) -> float:
        """Bytes per second of the fastest round: what the machine can do."""
        return self.bytes_moved / min(self.seconds)

    @property
    def median_rate(self) -> float:
        """Bytes per second of the median round."""
        return self.bytes_moved / self.median

    @property
    def interval_microseconds(self) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile."""
        low, middle, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return round(low * 1e6, 1), round(middle * 1e6, 1), round(high * 1e6, 1)


@dataclass(frozen=True)
class Arm:
    """Something to measure: called with the number of the round, so that it can move on to other memory."""

    call: Callable[[int], object]
    bytes_moved: int = 0


def take_turns(arms: dict[str, Arm], rounds: int, warmups: int = 2) -> dict[str, Times]:
    """Call every arm once per round."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(-warmups, rounds):
        for name, arm in arms.items():
            start = time.perf_counter()
            arm.call(turn + warmups)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: Times(tuple(seconds[name]), arm.bytes_moved) for name, arm in arms.items()}
