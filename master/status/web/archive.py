"""The archive of a run of map_elites for the page, from the newest checkpoint in its folder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from es_queue.command_line import format_command
from es_queue.errors import UsageError
from es_queue.run_folder import NamedRun, checkpoint_path
from es_queue.strategies.map_elites_archive import read_archive
from master.display.format import drawable_or_none
from master.status.run_folders import file_stamp

#: The largest checkpoint that is read for the page, and the most numbers of behaviours sent.
MOST_BYTES, MOST_NUMBERS = 2**27, 200_000
#: Numbers of a behaviour that a map can show.
MAP_NUMBERS = 2


def archive_data(run: NamedRun) -> dict[str, Any]:
    """The elites with their places on the map. Raises RunFolderError, or UsageError for an archive
    that the page cannot show.
    """
    path = checkpoint_path(run.folder, "last")
    command = f"{format_command('es-play')} {run.word} --cell="
    return {**_read(path, file_stamp(path)), "command": command}


@lru_cache(maxsize=4)
def _read(path: Path, stamp: tuple[int, int, int] | None) -> dict[str, Any]:
    if stamp is None or stamp[1] > MOST_BYTES:
        raise UsageError("the archive is too large for the page: draw it with es-plot --archive")
    archive, config = read_archive(path)
    cells = archive.cells
    if cells is None or not len(archive):
        raise UsageError("the archive has no elite yet")
    if archive.behaviour.size > MOST_NUMBERS:
        raise UsageError("the archive is too large for the page: draw it with es-plot --archive")
    is_grid = cells.units is None and len(cells.shape) <= MAP_NUMBERS
    return {
        "low": cells.low.tolist(),
        "high": cells.high.tolist(),
        "shape": list(cells.shape) if is_grid else None,
        "count": cells.count,
        "coverage": archive.coverage,
        "qd_score": drawable_or_none(archive.qd_score(config.qd_offset)),
        "cell": archive.cell.tolist(),
        "fitness": [drawable_or_none(value) for value in archive.fitness.tolist()],
        "behaviour": rounded(archive.behaviour),
        # es-play finds an elite by any behaviour in its cell, such as the middle
        "place": rounded(cells.centroids[archive.cell] if is_grid else archive.behaviour),
    }


def rounded(values: Any) -> list[list[float]]:
    """Nine digits, enough for float32."""
    return [[float(f"{value:.9g}") for value in row] for row in np.asarray(values).tolist()]
