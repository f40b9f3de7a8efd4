"""es-plot: draw runs' learning curves, with bands over seeds, as PNG, SVG or PDF."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from es_queue.errors import EXIT_DONE, EsQueueError, UsageError
from es_queue.security.sanitize import sanitize
from es_queue.util.command_parser import CommandParser, add_options, add_runs_folder, add_version
from master.display.format import LARGEST_DRAWN
from master.plot.archive_map import archive_map
from master.plot.canvas import plot_style, save_figure
from master.plot.cloud import behaviour_cloud
from master.plot.curves import learning_curves
from master.plot.panels import draw_panels
from master.plot.runs import AXES, RunCurves, read_runs
from master.storage.metrics_files import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DESCRIPTION = """\
Draw learning curves. Runs that differ only in their seed share one curve: the
mean (or interquartile mean) with its 95 % bootstrap interval. Thin lines show
the single runs.

examples:
  es-plot runs/walker                     one run
  es-plot runs/study --by time            a study of --seeds, over wall-clock time
  es-plot runs/a runs/b --out both.svg    two settings in one figure
  es-plot runs/walker --panels            four views of one run
  es-plot runs/walker --cloud --generation 0,50,400
                                          individuals of three generations
  es-plot runs/repertoire --archive       elites of map_elites over their behaviours
"""

#: Figures other than curves, of one run each.
VIEWS = ("archive", "cloud", "panels")


OPTIONS = """
runs RUN
    name or folder of a run or study, or a folder that contains some
--by
    horizontal axis; both draws steps and wall-clock time [default: both]
--metric NAME
    field of metrics.jsonl to draw [default: eval_mean]
--statistic
    statistic over seeds: mean, or interquartile mean (iqm) [default: mean]
--panels
    four views of one run: returns, evaluation, seconds, the unperturbed policy's rank
--cloud
    individuals of a generation, coloured by fitness: their behaviour, or their length and return
--archive
    fitness of the elites of map_elites over behaviours of one or two numbers, from the newest
    checkpoint
--generation N,N
    with --cloud: generations, one panel each [default: the newest recorded one]
--title TEXT
    title of the figure [default: the environment]
--label TEXT
    name of a curve; repeatable, in the order of the runs [default: what differs]
--out FILE
    figure to write, .png, .svg or .pdf [default: curves.png]
"""


def make_parser() -> CommandParser:
    parser = CommandParser("es-plot", DESCRIPTION)
    add_options(
        parser,
        OPTIONS,
        runs={"nargs": "+", "type": Path},
        by={"choices": [*AXES, "both"], "default": "both"},
        metric={"default": "eval_mean"},
        statistic={"choices": ["mean", "iqm"], "default": "mean"},
        title={"default": ""},
        label={"action": "append", "default": []},
        out={"type": Path, "default": Path("curves.png")},
    )
    add_runs_folder(parser)
    add_version(parser)
    return parser


def draw_and_save(given: argparse.Namespace) -> str:
    """Write the figure; returns a line that describes it. Raises UsageError."""
    runs = read_runs(given.runs, given.runs_dir)
    for run in runs:
        if run.left_out:
            print(f"es-plot: WARNING: {sanitize(beyond(run), 1000)}", file=sys.stderr)
    with plot_style():
        save_figure(draw_figure(given, runs), given.out)
    return (
        f"{given.out}: {len(runs)} run{'s' * (len(runs) != 1)}, "
        f"{', '.join(dict.fromkeys(run.task for run in runs))}"
    )


def beyond(run: RunCurves) -> str:
    count = f"{run.left_out:,} figure{'s' * (run.left_out != 1)}"
    return (
        f"{run.folder / METRICS} has {count} beyond ±{LARGEST_DRAWN:g}: "
        f"{'it is' if run.left_out == 1 else 'they are'} left out"
    )


def draw_figure(given: argparse.Namespace, runs: Sequence[RunCurves]) -> Figure:
    if given.generation is not None and not given.cloud:
        raise UsageError("--generation names what --cloud draws: add --cloud")
    views = [view for view in VIEWS if getattr(given, view)]
    if len(views) > 1:
        raise UsageError(f"--{views[0]} and --{views[1]} are different figures: give one of them")
    if views and len(runs) != 1:
        raise UsageError(f"--{views[0]} draws one run, and {len(runs)} were given")
    if given.cloud:
        return behaviour_cloud(runs[0].folder, parse_generations(given.generation), given.title)
    if given.archive:
        return archive_map(runs[0].folder, given.title)
    if given.panels:
        return draw_panels(runs[0], "steps" if given.by == "both" else given.by)
    return learning_curves(
        runs,
        given.metric,
        ["steps", "time"] if given.by == "both" else [given.by],
        given.statistic,
        given.title,
        [sanitize(label, 60) for label in given.label],
    )


def parse_generations(text: str | None) -> list[int]:
    """The generations of ``--generation``. Raises UsageError."""
    words = [] if text is None else text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(
            f"--generation is {text!r}: use whole numbers, separated by commas, such as 0,50,400"
        )
    return [int(word) for word in words]


def main(words: Sequence[str] | None = None) -> int:
    try:
        print(draw_and_save(make_parser().parse_words(words)))
    except EsQueueError as error:
        print(f"es-plot: {sanitize(error, 2000)}", file=sys.stderr)
        return error.exit_code
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
