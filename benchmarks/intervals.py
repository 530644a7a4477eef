"""How sure a figure is: 95 % intervals by resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 2000
LEVEL = (2.5, 97.5)

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def bootstrap_95(statistic: Callable[..., Floats], *samples: Sequence[float]) -> tuple[float, float]:
    """Percentile bootstrap of `statistic(*samples)`, each sample drawn anew with replacement.

    `statistic` takes one array [resamples, n] per sample and reduces the last axis.
    """
    generator = np.random.default_rng(0)
    drawn = []
    for sample in samples:
        values = np.asarray(sample, dtype=np.float64)
        drawn.append(values[generator.integers(0, len(values), (RESAMPLES, len(values)))])
    low, high = np.percentile(statistic(*drawn), LEVEL)
    return float(low), float(high)


def median_95(sample: Sequence[float]) -> tuple[float, float]:
    """Interval of a median."""
    return bootstrap_95(lambda values: np.median(values, axis=-1), sample)


def ratio_of_medians_95(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """Interval of median(above) / median(below), drawn apart."""
    return bootstrap_95(lambda a, b: np.median(a, axis=-1) / np.median(b, axis=-1), above, below)
