"""Learning curves: one line per setting, with a band over its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from es_queue.config.run_config import option_fields
from es_queue.errors import UsageError
from es_queue.security.sanitize import sanitize
from master.display.format import finite_or_none
from master.plot.bands import Band, compute_band
from master.plot.canvas import (
    BAND_ALPHA,
    COLOURS,
    LINE_STYLES,
    draw_target,
    format_x,
    make_figure,
)
from master.plot.runs import AXES, IGNORED_SETTINGS, RunCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

#: Labels of the common figures.
METRIC_LABELS = {
    "eval_mean": "evaluation: mean return\nof the unperturbed policy",
    "return_mean": "mean return of the population",
    "fitness_mean": "mean fitness of the population",
    "eval_best": "best evaluation so far",
}
#: Below a time axis with runs that cannot be compared by their time.
MIXED_TIME = "(only some of the runs shared their workers)"
#: The settings that name a curve, if the figure's runs differ in them.
BUDGETS = ("generations", "max_steps", "max_seconds", "keep_generations")
#: What the master can choose, and how a run is measured: these name a curve only if nothing else
#: does.
MINOR_SETTINGS = (
    "backend",
    "behaviour",
    "env_seeds",
    "noise_size",
    "eval_every",
    "eval_episodes",
    "final_episodes",
    "target_every",
    "target_reward",
)
NAMING_SETTINGS = ("strategy", "policy", "schedule", "population", "learning_rate", "sigma")


def learning_curves(
    runs: Sequence[RunCurves],
    metric: str,
    axes: Sequence[str],
    statistic: str,
    title: str = "",
    labels: Sequence[str] = (),
) -> Figure:
    """One panel for each of ``axes``, side by side. labels: names of the curves, in the order of
    ``runs``. Raises UsageError if no run has the metric, or for a wrong number of labels.
    """
    groups = group_runs(runs)
    if labels:
        if len(labels) != len(groups) or len(set(labels)) != len(labels):
            raise UsageError(
                f"--label is given {len(labels)} times for {len(groups)} curves: give each curve "
                "its own"
            )
        groups = dict(zip(labels, groups.values(), strict=True))
    drawing = make_figure(7.0 * len(axes), 4.4)
    for place, axis in enumerate(axes, 1):
        panel = drawing.add_subplot(1, len(axes), place)
        _draw(panel, groups, metric, axis, statistic, place == 1)
    drawing.suptitle(
        sanitize(title, 120) if title else ", ".join(dict.fromkeys(run.task for run in runs)),
        fontsize="large",
    )
    return drawing


def _draw(
    panel: Axes,
    groups: Mapping[str, Sequence[RunCurves]],
    metric: str,
    axis: str,
    statistic: str,
    labelled: bool,
) -> None:
    is_drawn = False
    looks = zip(cycle(COLOURS), cycle(LINE_STYLES), strict=False)
    for (colour, line), (label, members) in zip(looks, groups.items(), strict=False):
        curves = [curve for curve in (run.curve(metric, axis) for run in members) if len(curve[0])]
        if not curves:
            continue
        is_drawn, band = True, compute_band(curves, statistic)
        _draw_band(panel, band, colour, line, label)
        for x, y in curves if band.shade else ():
            panel.plot(x, y, color=colour, linestyle=line, linewidth=0.6, alpha=0.35)
    runs = [run for members in groups.values() for run in members]
    if not is_drawn:
        raise _unknown_metric(metric, runs)
    for target in sorted({str(run.target) for run in runs}):
        draw_target(panel, target)
    label = METRIC_LABELS.get(metric, metric.replace("_", " ")) if labelled else ""
    panel.set(xlabel=AXES[axis][1], ylabel=label)
    format_x(panel, axis)
    if axis == "time" and len({run.is_shared for run in runs}) > 1:
        panel.set_xlabel(f"{panel.get_xlabel()}\n{MIXED_TIME}")
    panel.legend(loc="lower right")


def _unknown_metric(metric: str, runs: Sequence[RunCurves]) -> UsageError:
    records = [record for run in runs for record in run.records[-50:]]
    known = {
        name for record in records for name in record if finite_or_none(record[name]) is not None
    }
    return UsageError(
        f"--metric {metric} is in no record of these runs; they have "
        f"{', '.join(sorted(known)) or 'none'}"
    )


def _draw_band(panel: Axes, band: Band, colour: str, line: LineStyleType, label: str) -> None:
    # matplotlib omits names that begin with an underscore from a legend.
    label = f" {label}" if label.startswith("_") else label
    label = f"{label} ({band.shade})" if band.shade else label
    marker = "o" if len(band.x) == 1 else ""  # a line of one point is invisible
    (drawn,) = panel.plot(band.x, band.middle, color=colour, linestyle=line, marker=marker)
    drawn.set(linewidth=1.8, label=label)
    if band.shade:
        panel.fill_between(band.x, band.low, band.high, color=colour, alpha=BAND_ALPHA, linewidth=0)


def group_runs(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    """Runs that differ only by seed, by how the group differs from the others."""
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    firsts = [members[0] for members in groups.values()]
    names = [group_name(first, firsts) for first in firsts]
    twice = Counter(names)
    unique = [
        name if twice[name] == 1 else f"{name}, {sanitize(first.folder.name, 40)}"
        for name, first in zip(names, firsts, strict=True)
    ]
    return dict(zip(unique, groups.values(), strict=True))


def group_name(run: RunCurves, others: Sequence[RunCurves]) -> str:
    """The settings in which it differs from the others, else the strategy and the policy."""
    tasks = {other.task for other in others}
    settings = {name for other in others for name in other.config}
    settings -= {*IGNORED_SETTINGS, *NAMING_SETTINGS, *BUDGETS, "env", "objective"}
    order = [*NAMING_SETTINGS, *sorted(settings.difference(MINOR_SETTINGS))]
    differing, minor = (
        [name for name in names if len({str(other.config.get(name)) for other in others}) > 1][:3]
        for names in (order, MINOR_SETTINGS)
    )
    differing = differing or minor
    words = [run.task] if len(tasks) > 1 else []
    if not words and not differing:
        differing = ["strategy", "policy"]
    return ", ".join([*words, *(format_setting(run, name) for name in differing)])


def format_setting(run: RunCurves, name: str) -> str:
    value, option = run.config.get(name, "?"), option_fields().get(name)
    if option is not None and value == option.default:
        value = option.metadata["default_word"] or value
    text = sanitize(value, 30)
    return (
        text if name in ("strategy", "policy", "schedule") else f"{name.replace('_', ' ')} {text}"
    )
