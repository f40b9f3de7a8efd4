"""Learning curves: runs are read from metrics.jsonl; one curve per setting, with a band over its
seeds; and four panels of one run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles
from es_queue.numerics.statistics import (
    MIN_RUNS_FOR_INTERVAL,
    bootstrap_interval,
    interquartile_means,
    means,
)
from es_queue.run_folder import STUDY_FILE, existing_folder, refuse_links
from es_queue.text import sanitize
from master.status.curve import Series
from master.status.figures import LARGEST_DRAWN, drawable_or_none, finite_or_none
from master.status.snapshot import read_settings, written_settings
from master.storage.metrics_files import METRICS, read_json_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The horizontal axes: a record's field, and the label.
AXES = {
    "steps": ("env_steps", "environment steps"),
    "time": ("seconds", "wall-clock seconds"),
    "generations": ("generation", "generations"),
    "episodes": ("episodes", "episodes"),
}
MOST_LINES = 2_000_000
#: With more records, neighbours are merged.
MOST_RECORDS = 50_000
#: Runs of one group may differ in these, which do not affect learning.
IGNORED_SETTINGS = ("seed", "run", "workers", "block")
#: Points of a band, and resamples for each: its edge is drawn a pixel or two wide.
POINTS, RESAMPLES = 200, 2000
STATISTICS = {"mean": means, "iqm": interquartile_means}
#: Generations in the rolling mean.
ROLLING = 10
#: Begins the field of an evaluation's mean of a number of the environment's info.
INFO = "eval_info_"
#: Labels of the common figures.
METRIC_LABELS = {
    "eval_mean": "evaluation: mean return\nof the unperturbed policy",
    "return_mean": "mean return of the population",
    "fitness_mean": "mean fitness of the population",
    "eval_best": "best evaluation so far",
}
#: The unit of a time axis that reaches three of it, with its seconds.
TIME_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
#: The settings that name a curve first, if the figure's runs differ in them.
NAMING_SETTINGS = ("strategy", "policy", "schedule", "population", "learning_rate", "sigma")
#: What the master can choose, and how a run is measured: these name a curve only if nothing else
#: does.
MINOR_SETTINGS = (
    *("backend", "behaviour", "env_seeds", "noise_size", "eval_every", "eval_episodes"),
    *("final_episodes", "target_every", "target_reward"),
)
#: These never name a curve.
UNNAMED = {
    *IGNORED_SETTINGS,
    *("generations", "max_steps", "max_seconds", "keep_generations", "env", "objective"),
}

Curve = tuple[Doubles, Doubles]


@dataclass(frozen=True)
class RunCurves:
    """One run. left_out: how many figures are too large to draw, or not finite; is_shared: whether
    its study has other runs, with which it shared the workers
    """

    folder: Path
    config: Mapping[str, Any]
    records: Series
    left_out: int = 0
    is_shared: bool = False

    @property
    def seed(self) -> str:
        return sanitize(self.config.get("seed", "?"), 20)

    @property
    def task(self) -> str:
        return sanitize(self.config.get("objective") or self.config.get("env") or "?", 60)

    @property
    def target(self) -> object:
        """The return that ends the run, as its newest record has it."""
        newest: Mapping[str, object] = self.records.rows[-1] if self.records.rows else {}
        return newest.get("target", self.config.get("target_reward"))

    @cached_property
    def group(self) -> str:
        """Equal for runs that differ only by seed."""
        settings = {key: self.config[key] for key in self.config if key not in IGNORED_SETTINGS}
        return json.dumps(settings, sort_keys=True, default=str)

    def curve(self, name: str, axis: str, *, is_trained: bool = False) -> Curve:
        """(x, y) float64 [n] of the generations that have both, x ascending; ``is_trained``:
        without the closing evaluation, which takes no steps and is no generation.
        """
        x = AXES[axis][0]
        rows = [one for one in self.records.rows if not is_trained or one.get("population", 1)]
        points = [(row[x], row[name]) for row in rows if x in row and name in row]
        columns = np.array(points, np.float64).reshape(-1, 2)
        # The closing evaluation takes the place of the one before.
        columns = columns[np.diff(columns[:, 0], append=np.inf) > 0]
        return columns[:, 0], columns[:, 1]


def read_runs(paths: Sequence[Path], runs_dir: str | None = None) -> list[RunCurves]:
    """All runs that the words name: runs, studies (``--seeds``), or folders of them. Raises
    NoRunError for a word that names none, UsageError for a folder without one.
    """
    runs: dict[Path, RunCurves] = {}
    for path in paths:
        place = existing_folder(path, runs_dir)
        files = [place / METRICS]
        if not files[0].is_file():
            is_study = (place / STUDY_FILE).is_file()
            patterns = [f"**/{METRICS}"] if is_study else [f"*/{METRICS}", f"*/*/{METRICS}"]
            found = {file for pattern in patterns for file in place.glob(pattern)}
            files = sorted(file for file in found if file.is_file())
        if not files:
            raise UsageError(
                f"{place} holds no run: give the folder of a run (with {METRICS} in it), of a "
                "study, or a folder that contains some"
            )
        runs |= {file.parent.resolve(): read_run(file.parent) for file in files}
    return list(runs.values())


def read_run(folder: Path) -> RunCurves:
    """The run of a folder. Of a repeated generation (a resumed run), the last counts. Raises
    UsageError for an unreadable file, RunFolderError for a folder with links.
    """
    refuse_links(folder)
    records, left_out = Series(most=MOST_RECORDS, parse=drawable_or_none), 0
    try:
        for line in read_json_lines(folder / METRICS, MOST_LINES):
            left_out += sum(map(is_too_large, line.values()))
            records.add(line)
    except OSError as error:
        raise UsageError(f"{folder / METRICS} cannot be read: {error.strerror}") from None
    study = folder.resolve().parent
    is_shared = (study / STUDY_FILE).is_file() and len(list(study.glob(f"*/{METRICS}"))) > 1
    return RunCurves(folder, read_settings(folder / "config.json"), records, left_out, is_shared)


def is_too_large(value: object) -> bool:
    """Whether a number, also one in a text, cannot be drawn."""
    number = finite_or_none(value) if isinstance(value, str) else value
    return isinstance(number, (int, float)) and not -LARGEST_DRAWN <= number <= LARGEST_DRAWN


# --- drawing


def draw_curves(
    figure: Figure,
    runs: Sequence[RunCurves],
    metric: str,
    axes: Sequence[str],
    statistic: str,
    labels: Sequence[str] = (),
) -> None:
    """One panel for each of ``axes``, side by side. labels: names of the curves, in the order of
    ``runs``. Raises UsageError if no run has the metric, or for a wrong number of labels.
    """
    groups = group_runs(runs)
    if labels:
        if not len(labels) == len({*labels}) == len(groups):
            raise UsageError(
                f"--label is given {len(labels)} times for {len(groups)} curves: give each curve "
                "its own"
            )
        groups = dict(zip(labels, groups.values(), strict=True))
    name = metric.removeprefix(INFO) if metric.startswith(INFO) else ""
    figure.set_size_inches(7 * len(axes), 4.4)
    for panel, axis in zip(figure.subplots(1, len(axes), squeeze=False)[0], axes, strict=True):
        for place, (label, members) in enumerate(groups.items()):
            found = [run.curve(metric, axis) for run in members]
            if curves := [curve for curve in found if len(curve[0])]:
                _draw_group(panel, curves, statistic, place, label)
        if not panel.lines:
            records = [record for run in runs for record in run.records.rows[-50:]]
            known = sorted({name for record in records for name in record})
            raise UsageError(
                f"--metric {metric} is in no record of these runs; they have "
                f"{', '.join(known) or 'none'}"
            )
        for target in sorted({str(run.target) for run in runs if not name}):
            draw_target(panel, target)
        finish_panel(panel, axis, "")
        if axis == "time" and len({run.is_shared for run in runs}) > 1:
            note = "(only some of the runs shared their workers)"
            panel.set_xlabel(f"{panel.get_xlabel()}\n{note}")
    about = f"evaluation: mean of {name}" if name else METRIC_LABELS.get(metric)
    figure.axes[0].set_ylabel(about or metric.replace("_", " "))
    figure.suptitle(", ".join(dict.fromkeys(run.task for run in runs)))


def _draw_group(
    panel: Axes, curves: Sequence[Curve], statistic: str, place: int, label: str
) -> None:
    # Curves also differ without colour.
    look: Any = {"color": f"C{place % 10}", "linestyle": ("-", "-.", ":")[place % 3]}
    x, middle, low, high, shade = compute_band(curves, statistic)
    # matplotlib omits names that begin with an underscore from a legend.
    label = f" {label}" if label.startswith("_") else label
    look_of_mean = {**look, "marker": "o" if len(x) == 1 else "", "linewidth": 2}
    panel.plot(x, middle, label=f"{label} ({shade})" if shade else label, **look_of_mean)
    if shade:
        panel.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
        for curve in curves:
            panel.plot(*curve, linewidth=0.6, alpha=0.4, **look)


def draw_panels(figure: Figure, run: RunCurves, axis: str) -> None:
    """Returns, evaluation, seconds, and the unperturbed policy's rank. Raises UsageError for a run
    without a closed generation.
    """
    x, mean = run.curve("return_mean", axis)
    if not len(x):
        raise UsageError(f"{run.folder} has no closed generation yet: wait for the first one")
    figure.set_size_inches(11, 7)
    returns, evaluation, seconds, rank = figure.subplots(2, 2).flat

    low, high = (run.curve(name, axis)[1] for name in ("return_min", "return_max"))
    returns.plot(x, mean, linewidth=0.8, alpha=0.6, label="mean of the population")
    if len(high) == len(x):
        label = "worst to best" if len(low) == len(x) else "up to the best"
        low = low if len(low) == len(x) else mean
        returns.fill_between(x, low, high, alpha=0.2, linewidth=0, label=label)
    returns.plot(x, rolling_mean(mean), linewidth=2, label=f"mean of {ROLLING} generations")
    elite = run.curve("elite_fitness", axis)
    if len(elite[0]):
        returns.plot(*elite, linestyle="-.", label="elite, evaluated again")
    finish_panel(returns, axis, "return in training")

    x, mean = run.curve("eval_mean", axis)
    std = run.curve("eval_std", axis)[1]
    evaluation.plot(x, mean, color="C0", marker="o", markersize=2.5, label="mean")
    if len(std) == len(mean):
        label = "± standard deviation"
        look = {"color": "C0", "alpha": 0.2, "linewidth": 0}
        evaluation.fill_between(x, mean - std, mean + std, label=label, **look)
    draw_target(evaluation, run.target)
    finish_panel(evaluation, axis, "return in evaluation")

    names = {"wait": "collecting", "update": "learning", "publish": "publishing"}
    for name, label in names.items():
        x, y = run.curve(f"seconds_{name}", axis, is_trained=True)
        if len(x):
            seconds.plot(x, np.maximum(y, 1e-5), linewidth=1, label=label)
    seconds.set_yscale("log")
    seconds.yaxis.set_major_formatter("{x:g}")
    finish_panel(seconds, axis, "seconds per generation", is_full=True)

    x, below = run.curve("centre_rank", axis)
    rank.plot(x, 1 - below, linewidth=0.6, alpha=0.6, label="each generation")
    rank.plot(x, rolling_mean(1 - below), linewidth=2, label=f"mean of {ROLLING} generations")
    rank.axhline(0.5, color="grey", linestyle="--", label="half of the population")
    rank.set_ylim(0, 1)
    finish_panel(rank, axis, "fraction that beats\nthe unperturbed policy", is_full=True)
    figure.suptitle(f"{run.task}, seed {run.seed}")


def draw_target(panel: Axes, target: object) -> None:
    level = drawable_or_none(target)
    if level is not None:
        panel.axhline(level, color="grey", linewidth=1, linestyle="--")
        place = panel.get_yaxis_transform()
        panel.text(0.01, level, f"target {level:g}", color="grey", va="bottom", transform=place)


def finish_panel(panel: Axes, axis: str, label: str, *, is_full: bool = False) -> None:
    """Labels, a legend, and ticks such as 1.5 M; of a time axis in hours, minutes or seconds."""
    # optional: matplotlib
    from matplotlib.ticker import EngFormatter, MaxNLocator

    panel.set(xlabel=AXES[axis][1], ylabel=label)
    panel.legend(loc="best" if is_full else "lower right")
    if axis != "time":
        panel.xaxis.set_major_formatter(EngFormatter())
        return
    low, high = panel.get_xlim()
    size, unit = next((size, unit) for size, unit in TIME_UNITS if high >= 3 * size or size == 1)
    ticks = MaxNLocator(7).tick_values(low / size, high / size)
    panel.set_xticks([size * tick for tick in ticks if low <= size * tick <= high])
    panel.xaxis.set_major_formatter(lambda x, _: f"{x / size:g}")
    panel.set_xlabel(f"wall-clock {unit}")


def compute_band(
    curves: Sequence[Curve], statistic: str = "mean"
) -> tuple[Doubles, Doubles, Doubles, Doubles, str]:
    """(x, middle, low, high, the meaning of low and high): the runs' mean or interquartile mean at
    each x, float64 [n], with its 95 % bootstrap interval; for two or three runs, with their range;
    a single run's own points, with an empty meaning.

    A run's curve is straight between its points. A run that has ended keeps its last value. The
    band begins when all runs have begun.
    """
    if len(curves) == 1:
        x, y = curves[0]
        return x, y, y, y, ""
    x = np.linspace(max(x[0] for x, _ in curves), max(x[-1] for x, _ in curves), POINTS)
    rows = np.sort(np.stack([np.interp(x, *curve) for curve in curves], axis=1), axis=1)
    compute = STATISTICS[statistic]
    if len(curves) <= MIN_RUNS_FOR_INTERVAL:  # a bootstrap interval of three is their range
        shade = "both runs" if len(curves) == 2 else f"range of {len(curves)} runs"
        return x, compute(rows), rows[:, 0], rows[:, -1], shade
    edges = [bootstrap_interval(row.tolist(), compute, resamples=RESAMPLES) for row in rows]
    low, high = np.array(edges).T
    return x, compute(rows), low, high, f"95 % interval, {len(curves)} runs"


def rolling_mean(y: Doubles, width: int = ROLLING) -> Doubles:
    """The mean of the newest ``width`` values at each place, of fewer at the start; float64 [n]."""
    sums = np.convolve(y, np.ones(width))[: len(y)] if len(y) else y
    return np.asarray(sums / np.minimum(np.arange(1, len(y) + 1), width))


def group_runs(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    """Runs that differ only by seed, by how the group differs from the others."""
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    names = group_names([members[0] for members in groups.values()])
    return {
        name if names.count(name) == 1 else f"{name}, {sanitize(ones[0].folder.name, 40)}": ones
        for name, ones in zip(names, groups.values(), strict=True)
    }


def group_names(firsts: Sequence[RunCurves]) -> list[str]:
    """The settings in which each run differs from the others, of those that its strategy and its
    policy use; else the strategy and the policy.
    """
    written = [written_settings(run.config) for run in firsts]

    def differs(name: str) -> bool:
        return len({settings[name] for settings in written if name in settings}) > 1

    others = {name for settings in written for name in settings}
    others -= {*NAMING_SETTINGS, *MINOR_SETTINGS, *UNNAMED}
    differing = [*filter(differs, (*NAMING_SETTINGS, *sorted(others)))][:3]
    minor = [*filter(differs, MINOR_SETTINGS)][:3]
    has_tasks = len({run.task for run in firsts}) > 1
    chosen = differing or minor or ([] if has_tasks else ["strategy", "policy"])
    names = []
    for run, settings in zip(firsts, written, strict=True):
        words = [run.task] if has_tasks else []
        for name in filter(settings.__contains__, chosen):
            label = "" if name in ("strategy", "policy", "schedule") else name.replace("_", " ")
            words.append(f"{label} {sanitize(settings[name], 30)}".strip())
        names.append(", ".join(words))
    return names
