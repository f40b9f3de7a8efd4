"""Statistics of observations (for their normalisation), of returns, and over runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Doubles, Floats

# --- running mean and variance of observations: merged in slot order, frozen in a generation

SMALLEST_VARIANCE = 1e-4  # an almost constant number must not be amplified once it moves
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
#: Numbers of the means to merge at once, so that they stay in the cache.
PIECE = 2**15


@dataclass(frozen=True)
class Moments:
    """Count, mean float64[d] and sum of squared deviations float64[d] of an episode, or of all so
    far. Merge in slot order: another order gives other bits.
    """

    count: int
    mean: Doubles
    m2: Doubles

    @classmethod
    def empty(cls, size: int) -> Moments:
        return cls(0, np.zeros(size), np.zeros(size))

    @staticmethod
    def of(observations: NDArray[Any]) -> Moments:
        """Of float[T, d], T >= 1, in float64: two passes, rows in order. Chan, Golub and LeVeque
        1983.
        """
        rows = np.ascontiguousarray(observations, dtype=np.float64)
        # an observation may be infinite; merge leaves such an episode out
        with np.errstate(all="ignore"):
            mean = np.add.reduce(rows, axis=0) / len(rows)
            deviations = rows - mean
            return Moments(len(rows), mean, np.add.reduce(deviations * deviations, axis=0))

    def merge(self, other: Moments) -> Moments:
        """With one more episode."""
        return self.merge_many([other.count], other.mean[np.newaxis], other.m2[np.newaxis])

    def merge_many(self, counts: Sequence[int], means: Doubles, m2s: Doubles) -> Moments:
        """With episodes of these means and M2s, float64[k, d], except those that would make the
        moments non-finite (Chan, Golub and LeVeque 1979).
        """
        if min(counts, default=1) < 1:
            kept = [at for at, count in enumerate(counts) if count >= 1]
            counts, means, m2s = [counts[at] for at in kept], means[kept], m2s[kept]
        piece = max(1, PIECE // max(1, len(self.mean)))
        result = self
        for start in range(0, len(counts), piece):
            segment = slice(start, start + piece)
            result = result._merge_valid(counts[segment], means[segment], m2s[segment])
        if np.isfinite(result.mean).all() and np.isfinite(result.m2).all():
            return result
        # A non-finite value persists to the end: one by one shows which episode spoils the rest.
        result = self
        for episode in map(Moments, counts, means, m2s) if len(counts) > 1 else ():
            result = result.merge(episode)
        return result

    def _merge_valid(self, counts: Sequence[int], means: Doubles, m2s: Doubles) -> Moments:
        """Unchecked. Only the means depend on each other."""
        before = list(accumulate(counts, initial=self.count))
        # Python integers: a product of two counts may exceed the precision of float64.
        weights = [added / count for added, count in zip(counts, before[1:], strict=True)]
        spreads = [
            earlier * added / count
            for earlier, added, count in zip(before, counts, before[1:], strict=False)
        ]
        deltas, step, mean = np.empty_like(means), np.empty_like(self.mean), self.mean.copy()
        terms = np.empty((2 * len(counts) + 1, len(mean)))
        with np.errstate(all="ignore"):
            for row, delta, weight in zip(
                means, deltas, np.array(weights).reshape(-1, 1), strict=True
            ):
                np.subtract(row, mean, delta)
                np.multiply(delta, weight, step)
                np.add(mean, step, mean)
            terms[0], terms[1::2] = self.m2, m2s
            np.multiply(deltas, deltas, terms[2::2])
            terms[2::2] *= np.array(spreads).reshape(-1, 1)
            # numpy reduces a single column pairwise
            m2 = (
                np.add.accumulate(terms[:, 0])[-1:]
                if len(mean) == 1
                else np.add.reduce(terms, axis=0)
            )
        return Moments(before[-1], mean, m2)

    def freeze(self, clip: float) -> FrozenStatistics:
        """The statistics that normalise the next generation; ``clip`` is in deviations."""
        if not self.count:
            return FrozenStatistics.identity(len(self.mean), clip)
        deviation = np.sqrt(np.maximum(self.m2 / self.count, SMALLEST_VARIANCE))
        # a task that is not finite would stop every worker
        mean = np.clip(self.mean, -LARGEST_FLOAT32, LARGEST_FLOAT32)
        return FrozenStatistics(
            mean.astype(np.float32), np.minimum(deviation, LARGEST_FLOAT32).astype(np.float32), clip
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint: exact, without pickle."""
        return {
            "moments_count": np.array(self.count, np.int64),
            "moments_mean": self.mean,
            "moments_m2": self.m2,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Moments:
        """Raises KeyError if an array is missing."""
        mean, m2 = (np.array(arrays[f"moments_{name}"], np.float64) for name in ("mean", "m2"))
        return cls(int(arrays["moments_count"]), mean, m2)


@dataclass(frozen=True)
class FrozenStatistics:
    """Mean and standard deviation float32[d] that normalise one generation's observations; clip:
    bound of the normalised numbers in deviations, 0 for none.
    """

    mean: Floats
    std: Floats
    clip: float
    _low: Floats = field(init=False, repr=False, compare=False)
    _high: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Arrays: a ufunc takes them 0.3 us faster per step than it converts a Python float.
        bound = np.full_like(self.mean, self.clip if self.clip else np.inf)
        object.__setattr__(self, "_low", -bound)
        object.__setattr__(self, "_high", bound)

    @classmethod
    def identity(cls, size: int, clip: float) -> FrozenStatistics:
        return cls(np.zeros(size, np.float32), np.ones(size, np.float32), clip)

    def normalize(self, observations: Floats) -> Floats:
        """clip((o - mean) / std, -clip, clip) of float32[..., d]: a new array."""
        out = np.subtract(observations, self.mean)
        np.divide(out, self.std, out)
        if self.clip:
            np.maximum(out, self._low, out=out)
            np.minimum(out, self._high, out=out)
        return out


# --- returns


@dataclass(frozen=True)
class ReturnStatistics:
    """Mean, population standard deviation, minimum and maximum of ``count`` returns."""

    mean: float
    std: float
    minimum: float
    maximum: float
    count: int

    @property
    def standard_error(self) -> float:
        """Of the mean: std/√count."""
        return self.std / math.sqrt(self.count)


def finite_means(names: Sequence[str], columns: NDArray[Any]) -> dict[str, float]:
    """The mean of the finite numbers of each column of [n, k]; without columns that have none."""
    known = {name: one[np.isfinite(one)] for name, one in zip(names, columns.T, strict=True)}
    return {name: float(one.mean(dtype=np.float64)) for name, one in known.items() if len(one)}


def sum_in_order(values: Iterable[float]) -> float:
    """The sum from left to right, rounded at each step, unlike ``sum`` since Python 3.12."""
    total = 0.0
    for value in values:
        total += value
    return total


def return_statistics(returns: Sequence[float] | Doubles) -> ReturnStatistics | None:
    """Summed in the given order, in float64; None without returns."""
    if not len(returns):
        return None
    values = np.asarray(returns, np.float64)
    with np.errstate(all="ignore"):
        mean = _accumulated(values) / len(values)
        deviations = (values - mean).tolist()
    try:
        # Python's squares; numpy's have other bits on some CPUs.
        squares = np.array([deviation**2 for deviation in deviations])
        spread = math.sqrt(_accumulated(squares) / len(values))
    except OverflowError:  # Python raises if the square exceeds float64
        spread = math.inf
    listed = values.tolist()
    return ReturnStatistics(mean, spread, min(listed), max(listed), len(listed))


def _accumulated(values: Doubles) -> float:
    """``sum_in_order`` of an array, to the bit, in a tenth of the time."""
    with np.errstate(all="ignore"):
        return float(np.add.accumulate(np.concatenate([np.zeros(1), values]))[-1])


# --- runs of one setting: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
# Statistical Precipice"

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
    """Higher is better. None or a non-finite value is a missing one."""
    sorted_values = _sorted(
        [value for value in values if value is not None and math.isfinite(value)]
    )
    count = sorted_values.shape[1]
    if count == 0:
        return Aggregates(0, len(values))

    def interval(statistic: Statistic) -> Interval | None:
        enough = count >= MIN_RUNS_FOR_INTERVAL
        return bootstrap_interval(sorted_values[0].tolist(), statistic) if enough else None

    return Aggregates(
        count,
        len(values),
        mean=float(means(sorted_values)[0]),
        mean_interval=interval(means),
        iqm=float(interquartile_means(sorted_values)[0]),
        iqm_interval=interval(interquartile_means),
        median=float(np.median(sorted_values)),
        worst=float(sorted_values[0, 0]),
        best=float(sorted_values[0, -1]),
    )


def means(rows: Doubles) -> Doubles:
    return np.asarray(rows.mean(axis=1))


def interquartile_means(rows: Doubles) -> Doubles:
    """The mean of each sorted row's middle half [n/4, 3n/4] of [0, n]: a value at its edge counts
    by the part inside.
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
    """The percentile bootstrap interval of a statistic over runs. The draws, with replacement, are
    the same in every numpy version and for any order of values.
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
