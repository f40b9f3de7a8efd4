"""Finds the elite of MAP-Elites that has a behaviour, in the archive of a run.

Importing this module loads numpy: fix the numeric environment first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from es_queue.errors import RunFolderError, UsageError
from es_queue.numerics.arrays import Floats
from es_queue.strategies.map_elites_archive import read_archive


@dataclass(frozen=True)
class Elite:
    """The best individual of a cell; ``fitness`` is of its own episodes in training.

    requested: the behaviour that the cell should contain; contains: whether it does
    """

    requested: list[float]
    contains: bool
    cell: int
    behaviour: list[float]
    fitness: float
    parameters: Floats

    @property
    def about(self) -> dict[str, Any]:
        names = ("requested", "contains", "cell", "behaviour", "fitness")
        return {name: getattr(self, name) for name in names}


def find_elite(path: Path, text: str) -> Elite:
    """The elite of the cell with the behaviour ``text``, such as 0.2,0.5, in the archive of a
    checkpoint; the nearest one if that cell is empty. Raises UsageError or RunFolderError.
    """
    requested = parse_behaviour(text)
    archive, _ = read_archive(path)
    cells = archive.cells
    if cells is None or not len(archive):
        raise RunFolderError(f"the archive of {path} has no elite yet: leave --cell out")
    numbers = len(cells.low)
    if len(requested) != numbers:
        best = ",".join(f"{number:.6g}" for number in archive.behaviour[archive.best])
        raise UsageError(
            f"--cell is {text}, but the behaviours of {path} have {numbers} "
            f"number{'s' * (numbers != 1)}: give as many, such as --cell={best}"
        )
    place = np.array(requested)
    row = archive.row(int(cells.locate(place[np.newaxis])[0]))
    contains = row is not None
    if row is None:
        # in the box of the bounds, as centroids are compared
        away = (archive.behaviour - place) / (cells.high - cells.low)
        row = int(np.argmin(np.square(away).sum(axis=1)))
    return Elite(
        requested,
        contains,
        int(archive.cell[row]),
        archive.behaviour[row].tolist(),
        float(archive.fitness[row]),
        archive.parameters[row],
    )


def parse_behaviour(text: str) -> list[float]:
    """The numbers of ``--cell``. Raises UsageError."""
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise UsageError(
            f"--cell is {text!r}: use a behaviour's numbers, joined by commas, such as 0.2,0.5"
        )
    return numbers
