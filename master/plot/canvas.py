"""Shared by all figures: matplotlib without a screen, colours, and writing the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_queue.errors import UsageError
from es_queue.security.private_directory import replacing
from master.display.format import drawable_or_none

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

INSTALL = "pip install 'es-queue[plot]'"
SUFFIXES = (".png", ".svg", ".pdf")
#: The unit of a time axis that reaches three of it, with its seconds.
TIME_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
#: Okabe and Ito's colours, distinct for all kinds of colour vision; black is for common lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442")
GREY = "#777777"
#: So that curves also differ without colour.
LINE_STYLES: Sequence[LineStyleType] = ("-", "-.", ":", (0, (6, 1)))
BAND_ALPHA = 0.18

#: Text stays text, in a PDF as the TrueType that journals ask for, a name with a dollar sign is no
#: formula, and ids are the same in every drawing.
STYLE: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "es-queue",
    "text.parse_math": False,
    "legend.fontsize": 9,
    "legend.edgecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
}


@contextmanager
def plot_style() -> Iterator[None]:
    """A context in which a figure is made and saved, by matplotlib's defaults and ``STYLE``. Raises
    UsageError if matplotlib is missing.
    """
    try:
        # A file matplotlibrc in the current folder can be another user's, and matplotlib 3.10.0
        # runs code that it contains.
        with chdir("/"):
            # optional: matplotlib
            from matplotlib import style
    except ImportError:
        raise UsageError(f"es-plot needs matplotlib, which is not installed: {INSTALL}") from None
    with style.context(["default", STYLE]):
        yield


def make_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    # optional: matplotlib
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def draw_target(axes: Axes, target: object) -> None:
    level = drawable_or_none(target)
    if level is None:
        return
    axes.axhline(level, color=GREY, linewidth=1, linestyle="--")
    axes.annotate(
        f"target {level:g}",
        (0.0, level),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        color=GREY,
        fontsize="small",
    )


def format_x(axes: Axes, axis: str) -> None:
    """1.5 M instead of 1500000; hours, minutes or seconds. Call it after drawing."""
    # optional: matplotlib
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if axis != "time":
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
        return
    low, high = axes.get_xlim()
    size, unit = next((size, unit) for size, unit in TIME_UNITS if high >= 3 * size or size == 1)
    ticks = MaxNLocator(7).tick_values(low / size, high / size)
    axes.set_xticks([size * tick for tick in ticks if low <= size * tick <= high])
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / size:g}")
    axes.set_xlabel(f"wall-clock {unit}")


def save_figure(figure: Figure, out: Path) -> None:
    """Write a complete PNG, SVG or PDF, or nothing. Raises UsageError for another suffix, or if it
    cannot be written.
    """
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"--out {out} is not a supported figure: its name must end in "
            f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
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
