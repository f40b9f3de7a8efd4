"""The archive of MAP-Elites: for each cell of behaviours, the best individual so far.

Cells are a grid, or a centroidal Voronoi tessellation (CVT) of a box of behaviours: Vassiliades,
Chatzilygeroudis, Mouret 2018, Using centroidal Voronoi tessellations to scale up the
multidimensional archive of phenotypic elites algorithm, https://arxiv.org/abs/1610.05729. The
centroids come from Lloyd's algorithm on fixed uniform samples. Sums have a fixed order, so every
CPU computes the same cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.environments.episode_rules import parse_bounds
from es_queue.errors import RunFolderError, UsageError
from es_queue.files import read_npz
from es_queue.numerics.arrays import Doubles, Floats, Integers, typed_array
from es_queue.protocol.messages import MAX_BEHAVIOUR_NUMBERS
from es_queue.run_folder import checkpoint_path
from es_queue.slot_plan import MEMBER, uniforms
from es_queue.strategies.base import State

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
#: Bound of the rounding of a squared distance, of at most 512.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Archive:
    """Elites in the order in which their cells were first filled. Its methods change nothing.

    cells: None before the first behaviour; cell: int64 [n], the cell of each elite; fitness:
    float64 [n]; behaviour: float32 [n, b]; parameters: float32 [n, size]
    """

    cells: Cells | None
    cell: Integers
    fitness: Doubles
    behaviour: Floats
    parameters: Floats

    @classmethod
    def empty(cls, size: int) -> Archive:
        behaviour, parameters = np.empty((0, 0), np.float32), np.empty((0, size), np.float32)
        return cls(None, np.empty(0, np.int64), np.empty(0), behaviour, parameters)

    @classmethod
    def of(cls, config: RunConfig, state: State) -> Archive:
        """The archive of a strategy's own state."""
        numbers, centroids = state["elite_behaviour"].shape[1], state["archive_centroids"]
        return cls(
            make_cells(config, numbers, centroids if len(centroids) else None) if numbers else None,
            *(state[f"elite_{name}"] for name in ("cell", "fitness", "behaviour", "parameters")),
        )

    @classmethod
    def read(cls, config: RunConfig, state: State, size: int) -> Archive:
        """The archive of a state that others can have written. Raises RunFolderError."""
        cell = typed_array(state, "elite_cell", np.int64, (None,))
        numbers = typed_array(state, "elite_behaviour", np.float32, (len(cell), None)).shape[1]
        typed_array(state, "elite_fitness", np.float64, (len(cell),))
        typed_array(state, "elite_parameters", np.float32, (len(cell), size))
        centroids = typed_array(state, "archive_centroids", np.float64, (None, None))
        if config.archive == CVT and numbers:
            validate_count(CVT, config.cells)
            typed_array(state, "archive_centroids", np.float64, (math.prod(config.cells), numbers))
        elif len(centroids):
            raise RunFolderError("it has centroids, but its archive has no cells of them")
        if not ((centroids >= 0) & (centroids <= 1)).all():
            raise RunFolderError("its centroids are not in a box from 0 to 1")
        if len(np.unique(centroids, axis=0)) < len(centroids):
            raise RunFolderError("its centroids are not all different")
        archive = cls.of(config, state)
        located = archive.cells.locate(archive.behaviour) if archive.cells else cell[:0]
        if not np.array_equal(cell, located) or len(np.unique(cell)) < len(cell):
            raise RunFolderError("its elites are not each in a cell of their own behaviour")
        return archive

    def to_arrays(self) -> State:
        units = self.cells.units if self.cells else None
        return {
            "archive_centroids": np.empty((0, 0)) if units is None else units,
            "elite_cell": self.cell,
            "elite_fitness": self.fitness,
            "elite_behaviour": self.behaviour,
            "elite_parameters": self.parameters,
        }

    def __len__(self) -> int:
        return len(self.cell)

    def row(self, cell: int) -> int | None:
        """The row of a cell's elite, None for an empty cell."""
        rows = np.flatnonzero(self.cell == cell)
        return int(rows[0]) if len(rows) else None

    @property
    def best(self) -> int:
        """The row of the greatest fitness, ties to the earlier cell."""
        return int(np.argmax(self.fitness))

    @property
    def coverage(self) -> float:
        """Filled share of the cells."""
        return len(self) / self.cells.count if self.cells else 0.0

    def qd_score(self, offset: float) -> float:
        """Sum of all elites' fitness less ``offset``, from left to right."""
        # from left to right, as a plain sum
        return float(np.add.accumulate(self.fitness - offset)[-1]) if len(self) else 0.0

    def accepted(self, behaviour: Floats, fitness: Doubles) -> Integers:
        """The individuals that become elites, ascending: each the best of its cell, ties to the
        current elite and then to the earlier individual. Those with a number that is not finite do
        not.

        ``behaviour`` [k, b], ``fitness`` [k]
        """
        assert self.cells is not None, "no behaviour has been seen"
        valid = np.flatnonzero(np.isfinite(fitness) & np.isfinite(behaviour).all(axis=1))
        cells = self.cells.locate(behaviour[valid])
        order = np.lexsort((-fitness[valid], cells))  # stable: equal ones keep their order
        firsts = order[np.flatnonzero(np.diff(cells[order], prepend=-1))]
        least = np.full(self.cells.count, -np.inf)
        least[self.cell] = self.fitness
        better = firsts[fitness[valid[firsts]] > least[cells[firsts]]]
        return np.sort(valid[better])

    def with_elites(self, behaviour: Floats, fitness: Doubles, parameters: Floats) -> Archive:
        """With accepted individuals, each in place of its cell's elite."""
        assert self.cells is not None, "no behaviour has been seen"
        cells = self.cells.locate(behaviour)
        row_of = np.full(self.cells.count, -1)
        row_of[self.cell] = np.arange(len(self))
        is_new = row_of[cells] < 0
        row_of[cells[is_new]] = len(self) + np.arange(np.count_nonzero(is_new))
        rows = row_of[cells]

        def merged(values: NDArray[Any], added: NDArray[Any]) -> NDArray[Any]:
            whole = np.concatenate([values, added[is_new]])
            whole[rows] = added
            return whole

        return Archive(
            self.cells,
            merged(self.cell, cells),
            merged(self.fitness, fitness),
            merged(self.behaviour, behaviour),
            merged(self.parameters, parameters),
        )


def load_archive(run: str | Path, runs_dir: str | Path | None = None) -> tuple[Archive, RunConfig]:
    """The archive in a run's newest checkpoint, or in the file that ``run`` names, and the run's
    settings. Raises RunFolderError if there is none.
    """
    return read_archive(checkpoint_path(run, "last", runs_dir))


def read_archive(path: Path) -> tuple[Archive, RunConfig]:
    names = {f"strategy.{name}": name for name in Archive.empty(0).to_arrays()}
    try:
        arrays, meta = read_npz(path, ("parameters", *names))
        if len(arrays) <= len(names):
            raise RunFolderError("it lacks their arrays")
        size = len(typed_array(arrays, "parameters", np.float32, (None,)))
    except RunFolderError as error:
        raise RunFolderError(
            f"{path} has no archive: name a run of the strategy map_elites, or one of its "
            f"checkpoints generation-*.npz ({error})"
        ) from None
    try:
        config = RunConfig.of(meta.get("config"), str(path))
        state = {name: arrays[stored] for stored, name in names.items()}
        return Archive.read(config, state, size), config
    except (RunFolderError, UsageError) as error:
        raise RunFolderError(f"the archive in {path} cannot be used: {error}") from None


@dataclass(frozen=True)
class Cells:
    """Cells numbered from 0 in the box from ``low`` to ``high``, float64 [b] each. A behaviour
    outside the box belongs to the nearest cell at its edge.

    shape: cells along each dimension of a grid, whose last one varies fastest; (count,) for
    centroids
    units: float64 [count, b], centroids of a box from 0 to 1, or None for a grid. A behaviour
    belongs to the nearest in that box, whatever the units of its numbers; ties to the lower number.
    """

    low: Doubles
    high: Doubles
    shape: tuple[int, ...]
    units: Doubles | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def centroids(self) -> Doubles:
        """Middles of the cells in the units of the behaviour, float64 [count, b]."""
        units = self.units
        if units is None:
            places = np.stack(np.unravel_index(np.arange(self.count), self.shape), axis=1)
            units = (places + 0.5) / np.array(self.shape)
        return self.low + units * (self.high - self.low)

    def locate(self, behaviours: Floats) -> Integers:
        """The cell of each of ``behaviours`` [k, b], finite: int64 [k]."""
        units = (behaviours.astype(np.float64) - self.low) / (self.high - self.low)
        units = np.clip(units, 0.0, 1.0)
        if self.units is not None:
            return nearest(units, self.units)
        sides = np.array(self.shape)
        places = np.minimum((units * sides).astype(np.int64), sides - 1)
        return np.asarray(np.ravel_multi_index(tuple(places.T), self.shape), np.int64)

    def outside_share(self, behaviours: Floats) -> float:
        """The share of ``behaviours`` [k, b] outside the box; 0 of none."""
        outside = ((behaviours < self.low) | (behaviours > self.high)).any(axis=1)
        return int(np.count_nonzero(outside)) / max(1, len(behaviours))


def make_cells(config: RunConfig, numbers: int, centroids: Doubles | None = None) -> Cells:
    """The cells for behaviours of so many numbers, with the ``centroids`` of a state, else computed
    ones. Raises UsageError if the settings do not fit.
    """
    sides, bounds = config.cells, parse_bounds(config.behaviour_bounds)
    validate_count(config.archive, sides)
    if not 0 < numbers <= MAX_BEHAVIOUR_NUMBERS:
        raise UsageError(
            f"a behaviour has {numbers:,} numbers, but must have 1 to {MAX_BEHAVIOUR_NUMBERS}"
        )
    entries = {"behaviour_bounds": len(bounds)}
    entries |= {"cells": len(sides)} if config.archive == GRID else {}
    for name, count in entries.items():
        if count not in (1, numbers):
            raise UsageError(
                f"{name} has {count} entries, but a behaviour has {numbers} numbers: use one entry "
                f"for all of them, or {numbers}"
            )
    low, high = np.broadcast_to(bounds, (numbers, 2)).T
    if config.archive == CVT:
        count = math.prod(sides)
        if centroids is None:
            validate_time(count, numbers)
            centroids = centroids_of(count, numbers)
        return Cells(low, high, (count,), centroids)
    whole = sides * numbers if len(sides) == 1 else sides
    if math.prod(whole) > MAX_CELLS:
        raise UsageError(
            f"cells is {sides[0]}, but {numbers} numbers per behaviour make more than "
            f"{MAX_CELLS:,} cells of it: use fewer, or archive cvt"
        )
    return Cells(low, high, whole)


def validate_time(count: int, numbers: int) -> None:
    """Raises UsageError if so many centroids of so many numbers take too long."""
    each = numbers + NUMBERS_OF_COMPARISON
    samples = max(LEAST_SAMPLES, SAMPLES_PER_CENTROID * count)
    if numbers > FEW_NUMBERS and count * samples * each > MOST_COMPARED:
        most = math.isqrt(MOST_COMPARED // (SAMPLES_PER_CENTROID * each))
        raise UsageError(
            f"cells is {count}, but so many centroids of {numbers} numbers take long: use at most "
            f"{most}, or a behaviour of fewer numbers"
        )


def validate_count(kind: str, sides: tuple[int, ...]) -> None:
    """Raises UsageError for a number of cells that an archive of this kind cannot have."""
    count, most = math.prod(map(float, sides)), MAX_CENTROIDS if kind == CVT else MAX_CELLS
    if not 1 < count <= most:
        raise UsageError(
            f"cells is {','.join(map(str, sides))}, but archive {kind} has 2 to {most:,} cells: "
            f"use {'more' if count <= 1 else 'fewer'}"
        )


# --- centroids


@lru_cache(maxsize=4)
def centroids_of(count: int, numbers: int) -> Doubles:
    """Centroids of ``count`` cells of a box from 0 to 1, float64 [count, numbers], read-only; an
    empty cell keeps its centroid.
    """
    samples = max(LEAST_SAMPLES, SAMPLES_PER_CENTROID * count)
    # The seed is not the run's: all runs with these settings have the same cells.
    points = uniforms(0, MEMBER, 0, samples * numbers).reshape(samples, numbers)
    centroids = points[:count].copy()
    for _ in range(ROUNDS):
        cells = nearest(points, centroids)
        counts = np.bincount(cells, minlength=count)[:, np.newaxis]
        sums = np.stack([np.bincount(cells, column, count) for column in points.T], axis=1)
        moved = np.where(counts > 0, sums / np.maximum(counts, 1), centroids)
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    centroids.setflags(write=False)
    return centroids


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
    """By a product of matrices. Centroids whose distances differ by no more than its rounding are
    compared in a fixed order of sums, so every CPU finds the same.
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
