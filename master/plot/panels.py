"""Four panels of one run: returns, evaluation, seconds, and the unperturbed policy's rank."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from es_queue.errors import UsageError
from master.plot.bands import rolling_mean
from master.plot.canvas import (
    BAND_ALPHA,
    COLOURS,
    GREY,
    draw_target,
    format_x,
    make_figure,
)
from master.plot.runs import AXES, RunCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Generations in the rolling mean.
ROLLING_GENERATIONS = 10


def draw_panels(run: RunCurves, axis: str) -> Figure:
    """Four panels over one axis. Raises UsageError for a run without a closed generation."""
    if not len(run.curve("return_mean", axis)[0]):
        raise UsageError(f"{run.folder} has no closed generation yet: wait for the first one")
    drawing = make_figure(11, 7)
    drawings = (_draw_returns, _draw_evaluation, _draw_seconds, _draw_centre_rank)
    for place, draw in enumerate(drawings, 1):
        panel = drawing.add_subplot(2, 2, place)
        draw(panel, run, axis)
        format_x(panel, axis)
    drawing.suptitle(f"{run.task}, seed {run.seed}", fontsize=12)
    return drawing


def _draw_returns(panel: Axes, run: RunCurves, axis: str) -> None:
    x, mean = run.curve("return_mean", axis)
    panel.plot(x, mean, color=COLOURS[0], linewidth=0.8, alpha=0.6, label="mean of the population")
    for low, high, label in (
        ("return_min", "return_max", "worst to best"),
        ("", "return_max", "up to the best"),
    ):
        edges = [run.curve(name, axis) for name in (low, high) if name]
        if all(len(edge[0]) == len(x) for edge in edges):
            panel.fill_between(
                x,
                edges[0][1] if low else mean,
                edges[-1][1],
                color=COLOURS[0],
                alpha=BAND_ALPHA,
                linewidth=0,
                label=label,
            )
            break
    panel.plot(
        x,
        rolling_mean(mean, ROLLING_GENERATIONS),
        color=COLOURS[1],
        linewidth=1.8,
        label=f"mean of {ROLLING_GENERATIONS} generations",
    )
    x, elite = run.curve("elite_fitness", axis)
    if len(x):
        panel.plot(x, elite, color=COLOURS[2], linestyle="-.", label="elite, evaluated again")
    panel.set(xlabel=AXES[axis][1], ylabel="return in training")
    panel.legend(loc="lower right", fontsize=8)


def _draw_evaluation(panel: Axes, run: RunCurves, axis: str) -> None:
    x, mean = run.curve("eval_mean", axis)
    std = run.curve("eval_std", axis)[1]
    panel.plot(x, mean, color=COLOURS[2], linewidth=1.6, marker="o", markersize=2.5, label="mean")
    if len(std) == len(mean):
        panel.fill_between(
            x,
            mean - std,
            mean + std,
            color=COLOURS[2],
            alpha=BAND_ALPHA,
            linewidth=0,
            label="± standard deviation",
        )
    draw_target(panel, run.target)
    panel.set(xlabel=AXES[axis][1], ylabel="return in evaluation")
    if len(x):
        panel.legend(loc="lower right", fontsize=8)


def _draw_seconds(panel: Axes, run: RunCurves, axis: str) -> None:
    # The closing evaluation takes no steps, and is no generation.
    trained = replace(
        run, records=[record for record in run.records if record.get("population", 1)]
    )
    for name, label, colour in (
        ("seconds_wait", "collecting", COLOURS[0]),
        ("seconds_update", "learning", COLOURS[3]),
        ("seconds_publish", "publishing", COLOURS[4]),
    ):
        x, y = trained.curve(name, axis)
        if len(x):
            panel.plot(x, np.maximum(y, 1e-5), color=colour, linewidth=1, label=label)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set(xlabel=AXES[axis][1], ylabel="seconds per generation")
    panel.legend(loc="best", fontsize=8)


def _draw_centre_rank(panel: Axes, run: RunCurves, axis: str) -> None:
    x, rank = run.curve("centre_rank", axis)
    better = 1.0 - rank
    panel.plot(x, better, color=COLOURS[0], linewidth=0.6, alpha=0.5, label="each generation")
    panel.plot(
        x,
        rolling_mean(better, ROLLING_GENERATIONS),
        color=COLOURS[1],
        linewidth=1.8,
        label=f"mean of {ROLLING_GENERATIONS} generations",
    )
    panel.axhline(0.5, color=GREY, linewidth=1, linestyle="--", label="half of the population")
    panel.set_ylim(0, 1)
    panel.set(xlabel=AXES[axis][1], ylabel="fraction that beats\nthe unperturbed policy")
    panel.legend(loc="best", fontsize=8)
