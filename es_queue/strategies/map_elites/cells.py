"""The cells of an archive: a grid, or a centroidal Voronoi tessellation (CVT) of a box of
behaviours.

Vassiliades, Chatzilygeroudis, Mouret 2018, Using centroidal Voronoi tessellations to scale up the
multidimensional archive of phenotypic elites algorithm, https://arxiv.org/abs/1610.05729. The
centroids come from Lloyd's algorithm on fixed uniform samples, so runs with the same settings have
the same cells. Sums have a fixed order, so every CPU computes the same bits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.numerics.slot_plan import MEMBER, uniforms
from es_queue.protocol.messages import MAX_BEHAVIOUR_NUMBERS

GRID, CVT = "grid", "cvt"
#: The most cells of an archive, and of one with centroids, whose computation takes long.
MAX_CELLS, MAX_CENTROIDS = 2**20, 100_000
#: Uniform samples of the box for each centroid, the fewest in all, and the most rounds of Lloyd's
#: algorithm.
SAMPLES_PER_CENTROID, LEAST_SAMPLES, ROUNDS = 10, 10_000, 20
#: Points that are compared together, tiles of more points, and the most distances at once.
POINTS, TILES, DISTANCES = 64, 64, 2**21
#: Behaviours of so many numbers lie in tiles. Of more, each sample is compared with each centroid,
#: which costs as much as so many further numbers; the most numbers that are compared in a round.
FEW_NUMBERS, NUMBERS_OF_COMPARISON, MOST_COMPARED = 2, 32, 5 * 10**10
#: More centroids, or elites of different cells, are never in a box of this side, because the
#: centroids are spread out.
CROWD, CROWD_SIDE = 64, 1e-5
#: Bound of the rounding of a squared distance, of at most 512.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Cells(ABC):
    """Cells numbered from 0 in the box from ``low`` to ``high``, float64 [b] each.

    A behaviour outside the box belongs to the nearest cell at its edge.
    """

    low: Doubles
    high: Doubles

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of cells."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Cells along each dimension of the grid, whose last one varies fastest; ``(count,)`` for
        centroids.
        """

    @property
    @abstractmethod
    def centroids(self) -> Doubles:
        """Middles of the cells in the units of the behaviour, float64 [count, b]."""

    @abstractmethod
    def locate_units(self, units: Doubles) -> Integers:
        """Cells of behaviours [k, b] whose box is from 0 to 1."""

    def locate(self, behaviours: Floats) -> Integers:
        """The cell of each of ``behaviours`` [k, b], finite: int64 [k]."""
        return self.locate_units(self.to_units(behaviours))

    def to_units(self, behaviours: Floats) -> Doubles:
        """``behaviours`` [k, b], or the nearest points in the box, as if it were from 0 to 1."""
        units = (behaviours.astype(np.float64) - self.low) / (self.high - self.low)
        return np.clip(units, 0.0, 1.0)


@dataclass(frozen=True)
class GridCells(Cells):
    """Equal boxes; ``sides``: number of cells along each dimension."""

    sides: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.sides)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sides

    @property
    def centroids(self) -> Doubles:
        places = np.stack(np.unravel_index(np.arange(self.count), self.sides), axis=1)
        middles: Doubles = (places + 0.5) / np.array(self.sides)
        return self.low + middles * (self.high - self.low)

    def locate_units(self, units: Doubles) -> Integers:
        sides = np.array(self.sides)
        places = np.minimum((units * sides).astype(np.int64), sides - 1)
        return np.asarray(np.ravel_multi_index(tuple(places.T), self.sides), np.int64)


@dataclass(frozen=True)
class CentroidCells(Cells):
    """Points belong to the nearest of ``units`` float64 [count, b], centroids of a box from 0 to 1;
    ties to the lower number.

    Distances are measured in that box, so the units of a behaviour's numbers do not matter.
    """

    units: Doubles

    @property
    def count(self) -> int:
        return len(self.units)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count,)

    @property
    def centroids(self) -> Doubles:
        return self.low + self.units * (self.high - self.low)

    def locate_units(self, units: Doubles) -> Integers:
        return nearest(units, self.units)


def make_cells(config: RunConfig, numbers: int, centroids: Doubles | None = None) -> Cells:
    """The cells for behaviours of so many numbers; one side or bound holds for all of them.

    ``centroids``: those that a state has, else they are computed. Raises UsageError if the settings
    fit no such behaviour.
    """
    kind, sides = config.archive, config.cells
    validate_count(kind, sides)
    if not 0 < numbers <= MAX_BEHAVIOUR_NUMBERS:
        raise UsageError(
            f"a behaviour has {numbers:,} numbers, but must have 1 to {MAX_BEHAVIOUR_NUMBERS}"
        )
    if kind == GRID:
        validate_entries("cells", len(sides), numbers)
    low, high = box(config, numbers)
    if kind == CVT:
        validate_time(math.prod(sides), numbers)
        known = centroids_of(math.prod(sides), numbers) if centroids is None else centroids
        return CentroidCells(low, high, known)
    whole = sides * numbers if len(sides) == 1 else sides
    if math.prod(whole) > MAX_CELLS:
        raise UsageError(
            f"cells is {sides[0]}, but {numbers} numbers per behaviour make more than "
            f"{MAX_CELLS:,} cells of it: use fewer, or archive cvt"
        )
    return GridCells(low, high, whole)


def box(config: RunConfig, numbers: int) -> tuple[Doubles, Doubles]:
    """Lowest and highest numbers of behaviours in the archive, float64 [numbers] each. Raises
    UsageError.
    """
    bounds = parse_bounds(config.behaviour_bounds)
    validate_entries("behaviour_bounds", len(bounds), numbers)
    low, high = np.array(bounds * numbers if len(bounds) == 1 else bounds).T
    return low, high


def outside_share(behaviours: Floats, low: Doubles, high: Doubles) -> float:
    """The share of ``behaviours`` [k, b] outside a box; 0 of none."""
    outside = ((behaviours < low) | (behaviours > high)).any(axis=1)
    return int(np.count_nonzero(outside)) / max(1, len(behaviours))


def validate_entries(name: str, count: int, numbers: int) -> None:
    """Raises UsageError unless a setting has one entry, or one for each number of a behaviour."""
    if count not in (1, numbers):
        raise UsageError(
            f"{name} has {count} entries, but a behaviour has {numbers} numbers: use one entry "
            f"for all of them, or {numbers}"
        )


def validate_count(kind: str, sides: tuple[int, ...]) -> None:
    """Raises UsageError for a number of cells that an archive of this kind cannot have."""
    count, most = math.prod(map(float, sides)), MAX_CENTROIDS if kind == CVT else MAX_CELLS
    if not 1 < count <= most:
        raise UsageError(
            f"cells is {','.join(map(str, sides))}, but archive {kind} has 2 to {most:,} cells: "
            f"use {'more' if count <= 1 else 'fewer'}"
        )


def validate_time(count: int, numbers: int) -> None:
    """Raises UsageError if so many centroids of so many numbers take too long."""
    samples = max(LEAST_SAMPLES, SAMPLES_PER_CENTROID * count)
    each = numbers + NUMBERS_OF_COMPARISON
    if numbers > FEW_NUMBERS and count * samples * each > MOST_COMPARED:
        most = math.isqrt(MOST_COMPARED // (SAMPLES_PER_CENTROID * each))
        raise UsageError(
            f"cells is {count}, but so many centroids of {numbers} numbers take long: use at most "
            f"{most}, or a behaviour of fewer numbers"
        )


def is_crowded(units: Doubles) -> bool:
    """Whether more points of a box from 0 to 1 are close together than any run's centroids or
    elites. The comparison of all of them would take long.
    """
    counts = np.unique(np.floor(units / CROWD_SIDE), axis=0, return_counts=True)[1]
    return bool((counts > CROWD).any())


def parse_bounds(text: str) -> list[tuple[float, float]]:
    """The (lowest, highest) of each number of a behaviour in ``LOW:HIGH,…``. Raises UsageError."""
    bounds = []
    for part in text.split(","):
        try:
            low, high = map(float, part.split(":"))
        except ValueError:
            low = high = math.nan
        if not (low < high and math.isfinite(high - low)):
            raise UsageError(
                f"behaviour_bounds is {text!r}: use LOW:HIGH for each number of a behaviour, "
                "joined by commas, such as -1:1,0:300"
            )
        bounds.append((low, high))
    return bounds


@lru_cache(maxsize=4)
def centroids_of(count: int, numbers: int) -> Doubles:
    """Centroids of ``count`` cells of a box from 0 to 1 with ``numbers`` dimensions, float64
    [count, numbers], read-only.
    """
    samples = max(LEAST_SAMPLES, SAMPLES_PER_CENTROID * count)
    # The seed is not the run's: all runs with these settings have the same cells.
    points = uniforms(0, MEMBER, 0, samples * numbers).reshape(samples, numbers)
    centroids = points[:count].copy()
    for _ in range(ROUNDS):
        moved = mean_of_cells(points, nearest(points, centroids), centroids)
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    centroids.setflags(write=False)
    return centroids


def mean_of_cells(points: Doubles, cells: Integers, centroids: Doubles) -> Doubles:
    """The mean of the points in each cell, summed in their order; an empty cell keeps its
    centroid.
    """
    counts = np.bincount(cells, minlength=len(centroids))
    sums = [np.bincount(cells, column, len(centroids)) for column in points.T]
    means = np.stack(sums, axis=1) / np.maximum(counts, 1)[:, np.newaxis]
    return np.where(counts[:, np.newaxis] > 0, means, centroids)


def nearest(points: Doubles, centroids: Doubles) -> Integers:
    """The nearest of ``centroids`` [c, b] to each of ``points`` [k, b], int64 [k]; ties to the
    lower number. All are in a box from 0 to 1.

    In few dimensions, points that are close together are compared only with the centroids that can
    be the nearest of some point in the smallest box around them.
    """
    count = len(points)
    if count <= POINTS or points.shape[1] > FEW_NUMBERS:
        return nearest_of_all(points, centroids)
    each = max(POINTS, math.ceil(count / TILES))
    order, result = order_by_tile(points, each), np.empty(count, np.int64)
    for start in range(0, count, each):
        rows = order[start : start + each]
        piece = points[rows]
        low, high = piece.min(axis=0), piece.max(axis=0)
        inside = np.clip(centroids, low, high)  # the point of the box that is nearest
        corner = np.where(2 * centroids < low + high, high, low)  # and the farthest
        least, most = (squared_lengths(centroids - point) for point in (inside, corner))
        near = np.flatnonzero(least <= most.min() + ROUNDING)
        result[rows] = near[nearest(piece, centroids[near])]
    return result


def nearest_of_all(points: Doubles, centroids: Doubles) -> Integers:
    """The same, by a product of matrices. Centroids whose distances differ by no more than its
    rounding are compared in a fixed order of sums, so every CPU finds the same.
    """
    result = np.empty(len(points), np.int64)
    each = max(1, DISTANCES // len(centroids))
    lengths = squared_lengths(centroids)
    for start in range(0, len(points), each):
        piece = points[start : start + each]
        distances = lengths - 2 * (piece @ centroids.T)  # less the points' own squared lengths
        best = distances.argmin(axis=1)
        is_close = distances <= distances.min(axis=1)[:, np.newaxis] + ROUNDING
        for row in np.flatnonzero(np.count_nonzero(is_close, axis=1) > 1).tolist():
            close = np.flatnonzero(is_close[row])
            best[row] = close[np.argmin(squared_lengths(piece[row] - centroids[close]))]
        result[start : start + each] = best
    return result


def order_by_tile(points: Doubles, each: int) -> Integers:
    """The order of ``points`` [k, b] by tiles of their first two numbers, to and fro, with about
    ``each`` points per tile.
    """
    tiles = max(1, math.ceil(math.sqrt(len(points) / each)))
    low, high = points.min(axis=0), points.max(axis=0)
    places = (tiles * (points - low) / np.maximum(high - low, ROUNDING)).astype(np.int64)
    column, row = places[:, 0], places[:, min(1, points.shape[1] - 1)]
    return np.lexsort((np.where(column % 2, -row, row), column))


def squared_lengths(rows: Doubles) -> Doubles:
    """float64 [c] of ``rows`` [c, b], summed in the order of the dimensions."""
    total = np.zeros(len(rows))
    for column in rows.T:
        total += column * column
    return total
