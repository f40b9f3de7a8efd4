"""The archive of MAP-Elites: the fitness of each cell's elite, over the behaviours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from es_queue.config.run_config import AUTO, RunConfig
from es_queue.errors import RunFolderError, UsageError
from es_queue.numerics.arrays import Doubles
from es_queue.security.sanitize import sanitize
from es_queue.strategies.map_elites import Archive, load_archive
from es_queue.strategies.map_elites_archive import Cells
from master.display.format import LARGEST_DRAWN
from master.plot.canvas import COLOURS, make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.figure import Figure

MOST_NUMBERS = 2
#: More cells have no edges, and are an image in an SVG or PDF.
MOST_EDGES = 2500
EMPTY = "#e6e6e6"
BOX = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


def archive_map(run_dir: Path, title: str = "") -> Figure:
    """The archive of a run's newest checkpoint: bars for behaviours of one number, a map for two.
    Raises UsageError or RunFolderError.
    """
    archive, config = load_archive(run_dir)
    cells = drawable_cells(archive, run_dir)
    fitness = np.full(cells.count, np.nan)
    fitness[archive.cell] = np.clip(archive.fitness, -LARGEST_DRAWN, LARGEST_DRAWN)
    name = "behaviour" if config.behaviour == AUTO else sanitize(config.behaviour, 40)
    drawing = make_figure(7.0, 5.4 if len(cells.low) == MOST_NUMBERS else 4.4)
    panel = drawing.add_subplot()
    if len(cells.low) == 1:
        _draw_bars(panel, cells, fitness)
        panel.set(xlabel=name, ylabel="fitness")
    else:
        drawing.colorbar(_draw_regions(panel, cells, fitness), ax=panel, label="fitness")
        panel.set(xlabel=f"{name}, first number", ylabel=f"{name}, second number")
        panel.grid(False)
        panel.set_ylim(cells.low[1], cells.high[1])
    panel.set_xlim(cells.low[0], cells.high[0])
    drawing.suptitle(
        f"{sanitize(title, 120) if title else sanitize(config.task, 60)}\n"
        f"{format_figures(archive, config)}",
        fontsize="large",
    )
    return drawing


def drawable_cells(archive: Archive, run_dir: Path) -> Cells:
    """Raises UsageError for an empty archive, and for one that no figure can show."""
    cells = archive.cells
    if cells is None or not len(archive):
        raise UsageError(f"--archive draws elites, but the archive of {run_dir} has none yet")
    if len(cells.low) > MOST_NUMBERS:
        raise UsageError(
            f"--archive draws behaviours of one or two numbers, and those of {run_dir} have "
            f"{len(cells.low)}: draw --metric qd_score or --metric coverage, or individuals with "
            "--cloud"
        )
    return cells


def format_figures(archive: Archive, config: RunConfig) -> str:
    assert archive.cells is not None
    return (
        f"{len(archive):,} of {archive.cells.count:,} cells, coverage "
        f"{100 * archive.coverage:.1f} %, QD score {archive.qd_score(config.qd_offset):,.6g}"
    )


def _draw_bars(panel: Axes, cells: Cells, fitness: Doubles) -> None:
    """A bar per elite, as wide as its cell."""
    middles = cells.centroids[:, 0]
    order = np.argsort(middles, kind="stable")
    between = (middles[order][1:] + middles[order][:-1]) / 2
    least, most = float(np.nanmin(fitness)), float(np.nanmax(fitness))
    panel.stairs(
        fitness[order],
        np.concatenate([cells.low, between, cells.high]),
        baseline=least - 0.05 * ((most - least) or 1.0),
        fill=True,
        color=COLOURS[0],
    )


def _draw_regions(panel: Axes, cells: Cells, fitness: Doubles) -> Collection:
    """A region per cell, coloured by its elite's fitness; cells without one are grey."""
    # optional: matplotlib
    from matplotlib.collections import PolyCollection

    panel.set_facecolor(EMPTY)
    values = np.ma.masked_invalid(fitness)
    drawn: Collection
    if cells.units is not None:
        regions = [
            cells.low + np.array(region) * (cells.high - cells.low)
            for region in voronoi_regions(cells.units)
        ]
        drawn = PolyCollection(regions, array=values)
        panel.add_collection(drawn)
    else:
        x, y = (
            np.linspace(low, high, side + 1)
            for low, high, side in zip(cells.low, cells.high, cells.shape, strict=True)
        )
        drawn = panel.pcolormesh(x, y, values.reshape(cells.shape).T)
    if cells.count <= MOST_EDGES:
        drawn.set(edgecolor="white", linewidth=0.4)
    else:
        drawn.set_rasterized(True)
    return drawn


def voronoi_regions(points: Doubles) -> list[Sequence[tuple[float, float]]]:
    """The corners of the part of the box from 0 to 1 that is nearest to each of ``points``
    [n, 2].
    """
    neighbours: list[list[int]] = [[] for _ in points]
    for first, second in neighbour_pairs(points):
        neighbours[first].append(second)
        neighbours[second].append(first)
    places = points.tolist()
    regions: list[Sequence[tuple[float, float]]] = []
    for place, others in zip(places, neighbours, strict=True):
        region: Sequence[tuple[float, float]] = BOX
        for other in others:
            region = nearer_part(region, place, places[other])
        regions.append(region)
    return regions


def neighbour_pairs(points: Doubles) -> list[list[int]]:
    """The edges of the Delaunay triangulation: only these neighbours bound a region. Raises
    RunFolderError for points that have none.
    """
    # optional: matplotlib
    from matplotlib.tri import Triangulation

    if len(points) == 2:
        return [[0, 1]]
    try:
        edges: list[list[int]] = Triangulation(points[:, 0], points[:, 1]).edges.tolist()
    except (ValueError, RuntimeError) as error:
        raise RunFolderError(f"the centroids of the archive span no area: {error}") from None
    return edges


def nearer_part(
    region: Sequence[tuple[float, float]], place: Sequence[float], other: Sequence[float]
) -> Sequence[tuple[float, float]]:
    """The part of a convex region, by its corners, that is nearer to ``place`` than to
    ``other``.
    """
    (x, y), (u, v) = place, other
    half = (u * u + v * v - x * x - y * y) / 2
    beyond = [a * (u - x) + b * (v - y) - half for a, b in region]
    kept: list[tuple[float, float]] = []
    for i, (a, b) in enumerate(region):
        c, d = region[i - 1]
        if beyond[i] * beyond[i - 1] < 0:
            share = beyond[i - 1] / (beyond[i - 1] - beyond[i])
            kept.append((c + share * (a - c), d + share * (b - d)))
        if beyond[i] <= 0:
            kept.append((a, b))
    return kept
