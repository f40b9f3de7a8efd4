"""es-plot: draw runs' learning curves, with bands over seeds, as PNG, SVG or PDF."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from es_queue.command_line import CommandParser, add_options, add_runs_folder, add_version
from es_queue.errors import EXIT_DONE, EsQueueError, UsageError
from es_queue.private_files import replacing
from es_queue.text import sanitize
from master.plot.curves import AXES, INFO, RunCurves, draw_curves, draw_panels, read_runs
from master.plot.individuals import draw_archive, draw_cloud
from master.status.figures import LARGEST_DRAWN
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
METRIC = "eval_mean"
VIEWS = ("archive", "cloud", "panels")
SUFFIXES = (".png", ".svg", ".pdf")
#: Text stays text, in a PDF as the TrueType that journals ask for, a name with a dollar sign is no
#: formula, and ids are the same in every drawing. The colours suit all kinds of colour vision.
STYLE = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "es-queue",
    "text.parse_math": False,
    "legend.fontsize": "small",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.4,
}
OPTIONS = """
runs RUN
    name or folder of a run or study, or a folder that contains some
--by
    horizontal axis; both draws steps and wall-clock time [default: both]
--metric NAME
    field of metrics.jsonl to draw [default: eval_mean]
--info NAME
    draw evaluations' mean of this number of the environment's info, such as is_success
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
        metric={"default": METRIC},
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
        if count := run.left_out:
            text = (
                f"{run.folder / METRICS} has {count:,} figure{'s' * (count != 1)} beyond "
                f"±{LARGEST_DRAWN:g}: {'it is' if count == 1 else 'they are'} left out"
            )
            print(f"es-plot: WARNING: {sanitize(text, 1000)}", file=sys.stderr)
    with empty_figure() as figure:
        draw(figure, given, runs)
        if given.title:
            figure.suptitle(sanitize(given.title, 120))
        save_figure(figure, given.out)
    tasks = ", ".join(dict.fromkeys(run.task for run in runs))
    return f"{given.out}: {len(runs)} run{'s' * (len(runs) != 1)}, {tasks}"


def draw(figure: Figure, given: argparse.Namespace, runs: Sequence[RunCurves]) -> None:
    if given.generation is not None and not given.cloud:
        raise UsageError("--generation names what --cloud draws: add --cloud")
    views = [view for view in VIEWS if getattr(given, view)]
    if len(views) > 1:
        raise UsageError(f"--{views[0]} and --{views[1]} are different figures: give one of them")
    if given.info and (views or given.metric != METRIC):
        raise UsageError("--info names the figure to draw: leave --metric and other views out")
    if views and len(runs) != 1:
        raise UsageError(f"--{views[0]} draws one run, and {len(runs)} were given")
    if given.cloud:
        draw_cloud(figure, runs[0].folder, parse_generations(given.generation))
    elif given.archive:
        draw_archive(figure, runs[0].folder)
    elif given.panels:
        draw_panels(figure, runs[0], "steps" if given.by == "both" else given.by)
    else:
        axes = ["steps", "time"] if given.by == "both" else [given.by]
        labels = [sanitize(label, 60) for label in given.label]
        metric = f"{INFO}{given.info}" if given.info else given.metric
        draw_curves(figure, runs, metric, axes, given.statistic, labels)


@contextmanager
def empty_figure() -> Iterator[Figure]:
    """A figure of matplotlib's defaults and ``STYLE``, which hold in the context. Raises UsageError
    if matplotlib is missing.
    """
    try:
        # A file matplotlibrc in the current folder can be another user's, and matplotlib 3.10.0
        # runs code that it contains.
        with chdir("/"):
            # optional: matplotlib
            from matplotlib import style
            from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "es-plot needs matplotlib, which is not installed: pip install 'es-queue[plot]'"
        ) from None
    with style.context(["default", "tableau-colorblind10", STYLE]):
        yield Figure(figsize=(7, 4.4), layout="constrained")


def save_figure(figure: Figure, out: Path) -> None:
    """Write a complete PNG, SVG or PDF, or nothing. Raises UsageError for another suffix, or if it
    cannot be written.
    """
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"--out {out} is not a supported figure: its name must end in .png, .svg or .pdf"
        )
    # No date in the file: the same runs give the same bytes.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    drawn = BytesIO()
    figure.savefig(drawn, format=suffix[1:], dpi=150, metadata=metadata)
    try:
        with replacing(out) as file:
            file.write(drawn.getvalue())
    except OSError as error:
        raise UsageError(
            f"--out {out} cannot be written: {error.strerror}; give --out a file in another folder"
        ) from None


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
