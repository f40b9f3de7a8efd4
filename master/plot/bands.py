"""Several runs of one setting as one curve with a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from es_queue.numerics.aggregates import (
    MIN_RUNS_FOR_INTERVAL,
    bootstrap_interval,
    interquartile_means,
    means,
)
from es_queue.numerics.arrays import Doubles

POINTS = 200
#: A band's edge is drawn a pixel or two wide.
RESAMPLES = 2000
STATISTICS = {"mean": means, "iqm": interquartile_means}


@dataclass(frozen=True)
class Band:
    """x, middle, low and high, float64 [n]. shade: the meaning of low and high, empty for a single
    run.
    """

    x: Doubles
    middle: Doubles
    low: Doubles
    high: Doubles
    shade: str


def compute_band(curves: Sequence[tuple[Doubles, Doubles]], statistic: str = "mean") -> Band:
    """The runs' mean or interquartile mean at each x, with its 95 % bootstrap interval; for two or
    three runs, with their range.

    A run's curve is straight between its points. A run that has ended keeps its last value. The
    band begins when all runs have begun. Raises ValueError if no curve has a point.
    """
    known = [curve for curve in curves if len(curve[0])]
    if not known:
        raise ValueError("no run has a point")
    if len(known) == 1:
        x, y = known[0]
        return Band(x, y, y, y, "")
    x = np.linspace(
        max(curve[0][0] for curve in known), max(curve[0][-1] for curve in known), POINTS
    )
    rows = np.stack([np.interp(x, *curve) for curve in known], axis=1)
    middle = STATISTICS[statistic](np.sort(rows, axis=1))
    if len(known) <= MIN_RUNS_FOR_INTERVAL:  # a bootstrap interval of three is their range
        shade = "both runs" if len(known) == 2 else f"range of {len(known)} runs"
        return Band(x, middle, rows.min(axis=1), rows.max(axis=1), shade)
    edges = np.array(
        [
            bootstrap_interval(row.tolist(), STATISTICS[statistic], resamples=RESAMPLES)
            for row in rows
        ]
    )
    return Band(x, middle, edges[:, 0], edges[:, 1], f"95 % interval, {len(known)} runs")


def rolling_mean(y: Doubles, width: int) -> Doubles:
    """The mean of the newest ``width`` values at each place, of fewer at the start; float64 [n]."""
    sums = np.concatenate([[0.0], np.cumsum(y)])
    places = np.arange(1, len(y) + 1)
    starts = np.maximum(0, places - width)
    return np.asarray((sums[places] - sums[starts]) / (places - starts))
