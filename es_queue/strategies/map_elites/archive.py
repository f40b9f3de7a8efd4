"""The archive of MAP-Elites: for each cell of behaviours, the best individual so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.parsing import config_from_values
from es_queue.config.run_config import RunConfig
from es_queue.errors import RunFolderError, UsageError
from es_queue.files import read_npz
from es_queue.numerics.arrays import Doubles, Floats, Integers, typed_array
from es_queue.strategies.map_elites.cells import (
    CVT,
    Cells,
    CentroidCells,
    is_crowded,
    make_cells,
    validate_count,
)
from es_queue.util.run_folder import checkpoint_path

State = dict[str, NDArray[Any]]
ARRAYS = (
    "archive_centroids",
    "elite_cell",
    "elite_fitness",
    "elite_behaviour",
    "elite_parameters",
)


@dataclass(frozen=True)
class Archive:
    """Elites in the order in which their cells were first filled. Its methods change nothing.

    cells: ``shape`` and ``centroids`` of all cells; None before the first behaviour
    cell: int64 [n], the cell of each elite; fitness: float64 [n]; behaviour: float32 [n, b];
    parameters: float32 [n, size]
    """

    cells: Cells | None
    cell: Integers
    fitness: Doubles
    behaviour: Floats
    parameters: Floats

    @classmethod
    def of(cls, config: RunConfig, state: State) -> Archive:
        """The archive of a strategy's own state."""
        numbers, centroids = state["elite_behaviour"].shape[1], state["archive_centroids"]
        known = centroids if len(centroids) else None
        return cls(
            make_cells(config, numbers, known) if numbers else None,
            state["elite_cell"],
            state["elite_fitness"],
            state["elite_behaviour"],
            state["elite_parameters"],
        )

    @classmethod
    def read(cls, config: RunConfig, state: State, size: int) -> Archive:
        """The archive of a state that others can have written, for policies of ``size`` parameters.
        Raises RunFolderError.
        """
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
        archive = cls.of(config, state)
        count = archive.cells.count if archive.cells else 0
        if len(np.unique(centroids, axis=0)) < len(centroids):
            raise RunFolderError("its centroids are not all different")
        # The comparison with centroids takes long, so an impossible number of elites comes first.
        is_placed = ((cell >= 0) & (cell < count)).all() and len(np.unique(cell)) == len(cell)
        if isinstance(archive.cells, CentroidCells) and (
            is_crowded(centroids) or is_crowded(archive.cells.to_units(archive.behaviour))
        ):
            raise RunFolderError("its centroids or its elites are too close together")
        if not is_placed or (
            archive.cells and not np.array_equal(cell, archive.cells.locate(archive.behaviour))
        ):
            raise RunFolderError("its elites are not each in a cell of their own behaviour")
        return archive

    @classmethod
    def empty(cls, size: int) -> Archive:
        """Without cells, for policies of ``size`` parameters."""
        behaviour, parameters = np.empty((0, 0), np.float32), np.empty((0, size), np.float32)
        return cls(None, np.empty(0, np.int64), np.empty(0), behaviour, parameters)

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
        """Sum of all elites' fitness less ``offset``."""
        # from left to right, as a plain sum
        return float(np.add.accumulate(self.fitness - offset)[-1]) if len(self) else 0.0

    # --- additions

    def accepted(self, behaviour: Floats, fitness: Doubles) -> Integers:
        """The individuals that become elites, ascending: each the best of its cell, ties to the
        current elite and then to the earlier individual.

        ``behaviour`` [k, b] and ``fitness`` [k]; individuals with a number that is not finite are
        not considered.
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

    # --- in a state

    def to_arrays(self) -> State:
        cells = self.cells
        return {
            "archive_centroids": cells.units
            if isinstance(cells, CentroidCells)
            else np.empty((0, 0)),
            "elite_cell": self.cell,
            "elite_fitness": self.fitness,
            "elite_behaviour": self.behaviour,
            "elite_parameters": self.parameters,
        }


def load_archive(run: str | Path, runs_dir: str | Path | None = None) -> tuple[Archive, RunConfig]:
    """The archive in a run's newest checkpoint, or in the file that ``run`` names, and the run's
    settings. Raises RunFolderError if there is none.
    """
    return read_archive(checkpoint_path(run, "last", runs_dir))


def read_archive(path: Path) -> tuple[Archive, RunConfig]:
    """The archive in a file, which is not a link, and its run's settings. Raises RunFolderError."""
    try:
        names = ("parameters", *(f"strategy.{name}" for name in ARRAYS))
        arrays, meta = read_npz(path, names)
        if len(arrays) < len(names):
            raise RunFolderError("it lacks their arrays")
        size = len(typed_array(arrays, "parameters", np.float32, (None,)))
    except RunFolderError as error:
        raise RunFolderError(
            f"{path} has no archive: name a run of the strategy map_elites, or one of its "
            f"checkpoints generation-*.npz ({error})"
        ) from None
    state = {name.removeprefix("strategy."): array for name, array in arrays.items()}
    try:
        config = config_from_values(meta.get("config"), str(path))
        return Archive.read(config, state, size), config
    except (RunFolderError, UsageError) as error:
        raise RunFolderError(f"the archive in {path} cannot be used: {error}") from None
