"""Sums and norms whose bits depend on their inputs alone: fixed chunks, slot order, no BLAS.

Plain numpy multiplies and ``add.reduce`` over the first axis, which adds whole rows one after the other.
BLAS would be twice as fast (the gather of the noise costs as much as either), but its kernels give other
bits on other CPUs and with other thread counts; these give the same on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

#: Columns of a chunk: 16 KiB of a float32 row. Changing any of these three changes digests.
COLUMNS = 4096
#: Slots whose noise is gathered at once: at most 8 MiB.
SLOTS = 512
#: Slots that are added up in float32 before they join the float64 total; small enough for the L2 cache.
GROUP = 32

Transform = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class NoiseRows(Protocol):
    """Whatever can cut slices of the noise: the table of a host, or an array in tests."""

    def rows(self, indices: NDArray[np.int64], start: int, stop: int) -> NDArray[np.float32]:
        """Row k of the answer, [len(indices), stop - start], is ``noise[indices[k] + start : indices[k] + stop]``."""
        ...


@dataclass(frozen=True)
class ArrayNoise:
    """An array [n] as the noise: for tests, and to try a strategy by hand."""

    noise: NDArray[np.float32]

    def rows(self, indices: NDArray[np.int64], start: int, stop: int) -> NDArray[np.float32]:
        """As :class:`NoiseRows` has it."""
        return np.take(self.noise, indices[:, np.newaxis] + np.arange(start, stop))


def weighted_rows(
    noise: NoiseRows,
    indices: NDArray[np.int64],
    weights: NDArray[np.float64],
    size: int,
    transform: Transform | None = None,
) -> NDArray[np.float64]:
    """Σ_k weights[k] · transform(noise row k), float64 [size], in the order of ``indices`` [S].

    ``transform`` works element by element (pgpe: ε² − 1); no more than a chunk of rows is ever in memory.
    Products are float32, groups of ``GROUP`` slots are added in float32, the groups in float64.
    Raises ValueError when there is not one weight a row.
    """
    if len(indices) != len(weights):
        raise ValueError(f"{len(weights)} weights for {len(indices)} rows of noise")
    scaled, exponent = unit_scaled(weights)
    column = scaled.astype(np.float32)[:, np.newaxis]
    total = np.zeros(size, np.float64)
    for start in range(0, size, COLUMNS):
        stop = min(start + COLUMNS, size)
        for first in range(0, len(indices), SLOTS):
            rows = noise.rows(indices[first : first + SLOTS], start, stop)
            _add_rows(total[start:stop], rows, column[first : first + SLOTS], transform)
    return np.ldexp(total, exponent)


def _add_rows(
    total: NDArray[np.float64],
    rows: NDArray[np.float32],
    column: NDArray[np.float32],
    transform: Transform | None,
) -> None:
    for first in range(0, len(rows), GROUP):
        group = rows[first : first + GROUP]
        values = group if transform is None else transform(group)
        total += np.add.reduce(values * column[first : first + GROUP], axis=0)


def unit_scaled(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """``values`` divided by a power of two so that the largest is in [½, 1), and that power's exponent.

    Exact for all but the smallest of numbers, so it changes no ordinary bit; it keeps squares, and a cast to
    float32, from overflow whatever an environment calls a reward.
    """
    largest = float(np.max(np.abs(values), initial=0.0))
    exponent = math.frexp(largest)[1]
    return np.ldexp(values, -exponent), exponent


def norm(vector: NDArray[Any]) -> float:
    """The Euclidean length of ``vector`` [n] in float64, by chunks of ``COLUMNS`` in order."""
    total = 0.0
    for start in range(0, len(vector), COLUMNS):
        total += float(np.add.reduce(np.square(vector[start : start + COLUMNS], dtype=np.float64)))
    return math.sqrt(total)
