"""The individuals of generations by behaviour (Wang et al. 2018, VINE), and the archive of
MAP-Elites.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from es_queue.config.settings import AUTO
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles
from es_queue.slot_record import SlotRecord, read_record, record_path, recorded_generations
from es_queue.strategies.map_elites import load_archive
from es_queue.text import sanitize
from master.status.figures import LARGEST_DRAWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 12
#: Most numbers of a behaviour: the time of its principal components grows with their square.
MOST_NUMBERS = 1000
#: More cells have no edges, and are an image in an SVG or PDF.
MOST_EDGES = 2500
#: Centroidal cells are drawn as so many pixels along each side.
PIXELS = 600


def draw_cloud(figure: Figure, run_dir: Path, generations: Sequence[int]) -> None:
    """One panel per generation on common axes, coloured by fitness; without ``generations``, the
    newest in the run's folder. Raises UsageError or RunFolderError.
    """
    there = recorded_generations(run_dir)
    if not there:
        raise UsageError(
            f"--cloud draws the individuals of a generation, but {run_dir} has recorded none "
            "(--keep-generations)"
        )
    for missing in [number for number in generations if number not in there]:
        near = min(there, key=lambda number: abs(number - missing))
        raise UsageError(
            f"--generation has {missing}, which {run_dir} has not recorded: the nearest "
            f"recorded one is {near}"
        )
    if len(generations) > MOST_PANELS:
        raise UsageError(
            f"--generation names {len(generations)} generations: a figure has at most {MOST_PANELS}"
        )
    records = [read_record(record_path(run_dir, one)) for one in generations or there[-1:]]
    places, fitness = zip(*map(individual_points, records), strict=True)
    has_behaviour = records[0].columns["behaviour"].shape[1] > 0
    labels, projected = project_points(np.concatenate(places), has_behaviour)
    limits = {"vmin": min(map(np.min, fitness)), "vmax": max(map(np.max, fitness))}
    columns = min(len(records), 4)
    rows = -(-len(records) // columns)
    figure.set_size_inches(4.6 * columns + 0.8, 3.9 * rows + 0.4)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    parts = np.split(projected, np.cumsum([len(scores) for scores in fitness])[:-1])
    for panel, record, where, scores in zip(panels.flat, records, parts, fitness, strict=False):
        order = np.argsort(scores, kind="stable")  # the fittest are on top
        look = {"s": 14, "edgecolors": "grey", "linewidths": 0.3, **limits}
        dots = panel.scatter(*where[order].T, c=scores[order], **look)
        panel.set_title(f"generation {record.task.generation}", fontsize="medium")
        panel.tick_params(labelbottom=True, labelleft=True)
        panel.set_xlabel(labels[0])
    for panel in panels.flat[len(records) :]:
        panel.remove()
    for panel in panels[:, 0]:
        panel.set_ylabel(labels[1])
    figure.colorbar(dots, ax=figure.axes, label="fitness", shrink=0.8)
    figure.suptitle(f"{sanitize(records[0].config.problem, 60)}: individuals")


def individual_points(record: SlotRecord) -> tuple[Doubles, Doubles]:
    """(places float64 [n, b], fitness [n]) of all individuals with a result. Without a behaviour,
    an individual's place is its length and its return.
    """
    columns, about = record.columns, f"generation {record.task.generation}"
    where = columns["behaviour"].astype(np.float64)
    if where.shape[1] > MOST_NUMBERS:
        raise UsageError(
            f"{about} has behaviours of {where.shape[1]} numbers: --cloud draws at most "
            f"{MOST_NUMBERS}"
        )
    if not where.shape[1]:
        where = np.stack([columns["length"].astype(np.float64), columns["return"]], axis=1)
    everything = np.column_stack([where, columns["fitness"]])
    valid = (np.abs(everything) <= LARGEST_DRAWN).all(axis=1)  # a comparison with NaN is false
    if not valid.any():
        raise UsageError(f"{about} has no individual with a result: draw another with --generation")
    return where[valid], columns["fitness"][valid].astype(np.float64)


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
    largest = np.abs(directions[:2]).argmax(axis=1)[:, None]
    components = directions[:2] * np.sign(np.take_along_axis(directions[:2], largest, axis=1))
    first = f"behaviour, first principal component ({shares[0]:.0f} %)"
    return (first, f"second ({shares[1]:.0f} %)"), centred @ components.T


def draw_archive(figure: Figure, run_dir: Path) -> None:
    """The fitness of each cell's elite in a run's newest checkpoint: bars for behaviours of one
    number, a map for two. Raises UsageError or RunFolderError.
    """
    archive, config = load_archive(run_dir)
    cells = archive.cells
    if cells is None or not len(archive):
        raise UsageError(f"--archive draws elites, but the archive of {run_dir} has none yet")
    numbers = len(cells.low)
    if numbers > 2:
        raise UsageError(
            f"--archive draws behaviours of one or two numbers, and those of {run_dir} have "
            f"{numbers}: draw --metric qd_score or --metric coverage, or individuals with --cloud"
        )
    fitness = np.full(cells.count, np.nan)
    fitness[archive.cell] = np.clip(archive.fitness, -LARGEST_DRAWN, LARGEST_DRAWN)
    name = "behaviour" if config.behaviour == AUTO else sanitize(config.behaviour, 40)
    panel = figure.add_subplot()
    if numbers == 1:
        middles = np.sort(cells.centroids[:, 0])
        edges = np.concatenate([cells.low, (middles[1:] + middles[:-1]) / 2, cells.high])
        least, most = np.nanmin(fitness), np.nanmax(fitness)
        heights = fitness[np.argsort(cells.centroids[:, 0], kind="stable")]
        panel.stairs(heights, edges, baseline=least - 0.05 * ((most - least) or 1.0), fill=True)
        panel.set(xlabel=name, ylabel="fitness")
    else:
        figure.set_size_inches(7, 5.4)
        sides = cells.shape if cells.units is None else (PIXELS, PIXELS)
        x, y = map(np.linspace, cells.low, cells.high, np.add(sides, 1))
        across, up = np.meshgrid((x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2)
        at = cells.locate(np.column_stack([across.ravel(), up.ravel()]).astype(np.float32))
        drawn = panel.pcolormesh(x, y, np.ma.masked_invalid(fitness)[at].reshape(sides[::-1]))
        if cells.units is None and cells.count <= MOST_EDGES:
            drawn.set(edgecolor="white", linewidth=0.4)
        else:
            drawn.set_rasterized(True)
        figure.colorbar(drawn, ax=panel, label="fitness")
        panel.set(xlabel=f"{name}, first number", ylabel=f"{name}, second number")
        panel.set(ylim=(cells.low[1], cells.high[1]), facecolor="lightgrey")
        panel.grid(False)
    panel.set_xlim(cells.low[0], cells.high[0])
    figure.suptitle(sanitize(config.problem, 60))
    panel.set_title(
        f"{len(archive):,} of {cells.count:,} cells, coverage {100 * archive.coverage:.1f} %, QD "
        f"score {archive.qd_score(config.qd_offset):,.6g}"
    )
