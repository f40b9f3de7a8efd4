"""Learning curves: one line a setting, with a band over its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from es_queue.errors import UsageError
from master.plot.bands import Band, band
from master.plot.canvas import BAND, COLOURS, GREY, figure, plain, thousands
from master.plot.runs import ASIDE, AXES, RunCurves
from master.wording import drawable, finite, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: How the common figures are called where people read them.
NAMES = {
    "eval_mean": "evaluation: mean return of the unperturbed policy", "return_mean": "mean return of the population", "fitness_mean": "mean fitness of the population",
    "eval_best": "best evaluation so far",
}  # fmt: skip
#: A curve is named by these settings, as far as the picture's runs differ in them.
TELLING = ("strategy", "policy", "schedule", "population", "learning_rate", "sigma")


def learning_curves(runs: Sequence[RunCurves], metric: str, axes: Sequence[str], statistic: str, title: str = "") -> Figure:
    """One panel for each of ``axes``, beside each other. Raises UsageError where no run has the metric."""
    groups = grouped(runs)
    picture = figure(7.0 * len(axes), 4.4)
    for place, axis in enumerate(axes, 1):
        panel = picture.add_subplot(1, len(axes), place)
        _draw(panel, groups, metric, axis, statistic, place == 1)
    picture.suptitle(printable(title, 120) if title else ", ".join(dict.fromkeys(run.task for run in runs)), fontsize=12)
    return picture


def _draw(panel: Axes, groups: Mapping[str, Sequence[RunCurves]], metric: str, axis: str, statistic: str, labelled: bool) -> None:
    drawn = 0
    for colour, (label, own) in zip(cycle(COLOURS), groups.items(), strict=False):
        curves = [one for one in (run.curve(metric, axis) for run in own) if len(one[0])]
        if not curves:
            continue
        drawn += 1
        together = band(curves, statistic)
        _line(panel, together, colour, label)
        if together.shade:
            for x, y in curves:
                panel.plot(x, y, color=colour, linewidth=0.6, alpha=0.35)
    if not drawn:
        known = sorted({name for own in groups.values() for run in own for record in run.records[-50:] for name in record if finite(record[name]) is not None})
        raise UsageError(f"--metric {metric} stands in no record of these runs; they have {', '.join(known) or 'none'}")
    for target in sorted(
        {
            value
            for own in groups.values()
            for run in own
            if (value := drawable(run.config.get("target_reward"))) is not None
        }
    ):
        panel.axhline(target, color=GREY, linewidth=1, linestyle="--")
        panel.annotate(f"target {target:g}", (0.0, target), xycoords=("axes fraction", "data"), xytext=(4, 3), textcoords="offset points", color=GREY, fontsize=8)
    plain(panel, AXES[axis][1], NAMES.get(metric, metric.replace("_", " ")) if labelled else "")
    thousands(panel)
    if labelled:
        panel.legend(loc="lower right", frameon=False, fontsize=9)


def _line(panel: Axes, one: Band, colour: str, label: str) -> None:
    label = f" {label}" if label.startswith("_") else label  # matplotlib leaves those out of a legend
    panel.plot(one.x, one.middle, color=colour, linewidth=1.8, label=f"{label} ({one.shade})" if one.shade else label)
    if one.shade:
        panel.fill_between(one.x, one.low, one.high, color=colour, alpha=BAND, linewidth=0)


def grouped(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    """Runs that differ by their seeds alone, under a name that says how the group differs from the others."""
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    firsts = [own[0] for own in groups.values()]
    names = [name_of(first, firsts) for first in firsts]
    twice = Counter(names)
    unique = [name if twice[name] == 1 else f"{name}, {printable(first.folder.name, 40)}" for name, first in zip(names, firsts, strict=True)]
    return dict(zip(unique, groups.values(), strict=True))


def name_of(run: RunCurves, others: Sequence[RunCurves]) -> str:
    """The settings in which it differs from the others; the strategy and the policy where there are none."""
    tasks = {one.task for one in others}
    settings = {name for one in others for name in one.config} - {*ASIDE, "env", "objective"}
    order = [*TELLING, *sorted(settings - {*TELLING})]
    telling = [name for name in order if len({str(one.config.get(name)) for one in others}) > 1][:3]
    words = [run.task] if len(tasks) > 1 else []
    words += [value(run, name) for name in telling] or ([value(run, "strategy"), value(run, "policy")] if not words else [])
    return ", ".join(words)


def value(run: RunCurves, name: str) -> str:
    """A setting as a curve's name tells it."""
    shown = printable(run.config.get(name, "?"), 30)
    return shown if name in ("strategy", "policy", "schedule") else f"{name.replace('_', ' ')} {shown}"
