"""Statistics over runs of one setting: mean, interquartile mean, and bootstrap intervals of both.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from es_queue.numerics.arrays import Doubles

LEVEL = 0.95
RESAMPLES = 20_000
#: With fewer runs, a bootstrap only repeats the values it was given.
MIN_RUNS_FOR_INTERVAL = 3
BOOTSTRAP_KEY = 20_210_830

#: A statistic of each row of sorted values: float64[R, n] to float64[R].
Statistic = Callable[[Doubles], Doubles]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Aggregates:
    """Statistics over the ``count`` of ``total`` runs that have a value.

    The intervals are None with fewer than three such runs; everything is None without any.
    """

    count: int
    total: int
    mean: float | None = None
    mean_interval: Interval | None = None
    iqm: float | None = None
    iqm_interval: Interval | None = None
    median: float | None = None
    worst: float | None = None
    best: float | None = None


def aggregate(values: Sequence[float | None]) -> Aggregates:
    """The statistics of runs; higher is better. None or a non-finite value is a missing one."""
    sorted_values = _sorted(
        [value for value in values if value is not None and math.isfinite(value)]
    )
    count = sorted_values.shape[1]
    if count == 0:
        return Aggregates(0, len(values))
    has_interval = count >= MIN_RUNS_FOR_INTERVAL
    return Aggregates(
        count,
        len(values),
        mean=float(means(sorted_values)[0]),
        mean_interval=bootstrap_interval(sorted_values[0].tolist(), means)
        if has_interval
        else None,
        iqm=float(interquartile_means(sorted_values)[0]),
        iqm_interval=bootstrap_interval(sorted_values[0].tolist(), interquartile_means)
        if has_interval
        else None,
        median=float(np.median(sorted_values)),
        worst=float(sorted_values[0, 0]),
        best=float(sorted_values[0, -1]),
    )


def means(rows: Doubles) -> Doubles:
    return np.asarray(rows.mean(axis=1))


def interquartile_means(rows: Doubles) -> Doubles:
    """The mean of each row's middle half; rows are sorted, float64[R, n].

    It leaves out the lowest and the highest quarter. Value k covers [k, k+1] of [0, n], the middle
    half is [n/4, 3n/4], and a value at its edge counts by the part inside.
    """
    count = rows.shape[1]
    places = np.arange(count, dtype=np.float64)
    weights = np.clip(
        np.minimum(places + 1, 0.75 * count) - np.maximum(places, 0.25 * count), 0.0, 1.0
    )
    left_out = count // 4
    # The rounding of the sum must not exceed the values that count.
    return np.asarray(
        np.clip(
            (rows * weights).sum(axis=1) / (0.5 * count),
            rows[:, left_out],
            rows[:, count - left_out - 1],
        )
    )


def bootstrap_interval(
    values: Sequence[float], statistic: Statistic, level: float = LEVEL, resamples: int = RESAMPLES
) -> Interval:
    """The percentile bootstrap interval of a statistic over runs: (low, high).

    It draws as many runs as there are, with replacement, ``resamples`` times. The draws are always
    the same, from Philox's raw words, which every numpy version repeats. Equal values give an equal
    interval, in any order.
    """
    row = _sorted(values)[0]
    raw = (
        np.random.Philox(key=BOOTSTRAP_KEY)
        .random_raw(resamples * len(row))
        .reshape(resamples, len(row))
    )
    drawn = ((raw >> np.uint64(32)) * np.uint64(len(row))) >> np.uint64(32)
    estimates = statistic(np.sort(row[drawn.astype(np.intp)], axis=1))
    low, high = np.quantile(estimates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _sorted(values: Sequence[float]) -> Doubles:
    return np.sort(np.asarray(values, np.float64)).reshape(1, -1)
