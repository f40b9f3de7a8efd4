"""The individuals of a generation by behaviour, coloured by fitness (Wang et al. 2018, VINE)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles
from es_queue.security.sanitize import sanitize
from es_queue.util.slot_record import SlotRecord, read_record, record_path, recorded_generations
from master.display.format import LARGEST_DRAWN
from master.plot.canvas import GREY, make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 12
#: Most numbers of a behaviour: the time of its principal components grows with their square.
MOST_NUMBERS = 1000


def behaviour_cloud(run_dir: Path, generations: Sequence[int], title: str = "") -> Figure:
    """One panel per generation on common axes; without ``generations``, the newest in the run's
    folder. Raises UsageError or RunFolderError.
    """
    records = [read_record(path) for path in chosen_files(run_dir, generations)]
    points = [individual_points(record) for record in records]
    all_points = np.concatenate([where for where, _, _ in points])
    labels, projected = project_points(all_points, points[0][2])
    columns = min(len(records), 4)
    rows = -(-len(records) // columns)
    drawing = make_figure(4.6 * columns + 0.8, 3.9 * rows + 0.4)
    fitness = np.concatenate([scores for _, scores, _ in points])
    limits = (float(fitness.min()), float(fitness.max()))
    start = 0
    panels: list[Axes] = []
    for place, (record, (where, scores, _)) in enumerate(zip(records, points, strict=True), 1):
        panel = drawing.add_subplot(
            rows,
            columns,
            place,
            sharex=panels[0] if panels else None,
            sharey=panels[0] if panels else None,
        )
        _draw_points(panel, projected[start : start + len(where)], scores, limits)
        panel.set_title(f"generation {record.task.generation}", fontsize=10)
        panel.set(
            xlabel=labels[0], ylabel=labels[1] if place % columns == 1 or columns == 1 else ""
        )
        start += len(where)
        panels.append(panel)
    drawing.colorbar(panels[0].collections[0], ax=panels, label="fitness", shrink=0.8)
    drawing.suptitle(
        sanitize(title, 120) if title else f"{sanitize(records[0].config.task, 60)}: individuals",
        fontsize=12,
    )
    return drawing


def chosen_files(run_dir: Path, generations: Sequence[int]) -> list[Path]:
    """Raises UsageError for a missing generation."""
    there = recorded_generations(run_dir)
    if not there:
        raise UsageError(
            f"--cloud draws the individuals of a generation, but {run_dir} has recorded none "
            f"(--keep-generations)"
        )
    missing = [generation for generation in generations if generation not in there]
    if missing:
        near = min(there, key=lambda generation: abs(generation - missing[0]))
        raise UsageError(
            f"--generation has {missing[0]}, which {run_dir} has not recorded: the nearest "
            f"recorded one is {near}"
        )
    if len(generations) > MOST_PANELS:
        raise UsageError(
            f"--generation names {len(generations)} generations: a figure has at most {MOST_PANELS}"
        )
    return [record_path(run_dir, generation) for generation in generations or there[-1:]]


def individual_points(record: SlotRecord) -> tuple[Doubles, Doubles, bool]:
    """(places float64 [n, b], fitness [n], whether places are behaviours) of all individuals with a
    result.

    Without a behaviour, an individual's place is its length and its return.
    """
    columns = record.columns
    numbers = columns["behaviour"].shape[1]
    if numbers > MOST_NUMBERS:
        raise UsageError(
            f"generation {record.task.generation} has behaviours of {numbers} numbers: --cloud "
            f"draws at most {MOST_NUMBERS}"
        )
    has_behaviour = numbers > 0
    where = (
        columns["behaviour"].astype(np.float64)
        if has_behaviour
        else np.stack([columns["length"].astype(np.float64), columns["return"]], axis=1)
    )
    # a comparison with NaN is false
    valid = (np.abs(columns["fitness"]) <= LARGEST_DRAWN) & (np.abs(where) <= LARGEST_DRAWN).all(
        axis=1
    )
    if not valid.any():
        raise UsageError(
            f"generation {record.task.generation} has no individual with a result: draw another "
            f"with --generation"
        )
    return where[valid], columns["fitness"][valid].astype(np.float64), has_behaviour


def project_points(where: Doubles, has_behaviour: bool) -> tuple[tuple[str, str], Doubles]:
    """The labels of the two axes, and the places on them, float64 [n, 2]: two principal components
    if there are more numbers.
    """
    if not has_behaviour:
        return ("length of the episodes, steps", "return"), where
    if where.shape[1] == 1:
        return ("behaviour", ""), np.concatenate([where, np.zeros_like(where)], axis=1)
    if where.shape[1] == 2:
        return ("behaviour, first number", "behaviour, second number"), where
    centred = where - where.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    shares = 100 * sizes**2 / max(float((sizes**2).sum()), 1e-300)
    # A direction's sign is arbitrary: the largest weight is positive, so the same run gives the
    # same figure.
    components = directions[:2] * np.sign(
        np.take_along_axis(directions[:2], np.abs(directions[:2]).argmax(axis=1)[:, None], axis=1)
    )
    return (
        f"behaviour, first principal component ({shares[0]:.0f} %)",
        f"second ({shares[1]:.0f} %)",
    ), centred @ components.T


def _draw_points(
    panel: Axes, where: Doubles, fitness: Doubles, limits: tuple[float, float]
) -> None:
    """The fittest are on top."""
    order = np.argsort(fitness, kind="stable")
    panel.scatter(
        where[order, 0],
        where[order, 1],
        c=fitness[order],
        s=14,
        vmin=limits[0],
        vmax=limits[1],
        cmap="viridis",
        edgecolors=GREY,
        linewidths=0.3,
    )
