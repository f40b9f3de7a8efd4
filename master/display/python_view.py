"""A run in Python: a callback, and if requested a line that is rewritten, or in a notebook a bar
towards its budget, its newest figures, and its curve.
"""

from __future__ import annotations

import html
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

from es_queue.config.run_config import RunConfig
from master.display.log_view import (
    LEAST_LINE_SECONDS,
    GenerationPace,
    RunView,
    SafeStream,
    format_generation,
    format_start,
    format_summary,
)
from master.status.curve import Series
from master.status.figures import (
    Record,
    drawable_or_none,
    finite_or_none,
    format_compact,
    format_score,
)

#: Figures of a record that its generation has only if it was trained.
TRAINING_FIGURES = (
    *(f"return_{name}" for name in ("mean", "median", "std", "min", "max")),
    *(f"fitness_{name}" for name in ("mean", "std", "max")),
    "length_mean",
    "cut_fraction",
)
#: Of the figure, in pixels; the curve keeps clear of its edges.
WIDTH, HEIGHT, MARGIN = 600, 180, 14

#: Replaces the previous output by a text, or by the HTML that a function makes of it; the last one
#: stays.
Show = Callable[[str, Callable[[str], str], bool], None]
Points = list[tuple[float, float]]


class PythonView(RunView):
    """``callback`` gets the figures of each generation. With ``show``, the newest are shown, at
    most once per second. ``say`` prints lines about the start, and notes, which become warnings
    without it.

    keeps_going: False once the callback has returned False; it is not called again. The last
    generation of a run is only evaluated: its record repeats the training figures of the one before
    """

    def __init__(
        self,
        callback: Callable[[Record], bool | None] | None,
        config: RunConfig,
        show: Show | None = None,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], object] | None = None,
        run: str = "",
    ) -> None:
        self._callback, self._config, self._show, self._clock = callback, config, show, clock
        self._say, self._run = say, run
        self.keeps_going = True
        self._trained: Record = {}
        self._line = ""  # of the newest generation
        self._pace, self._last_time = GenerationPace(clock), -LEAST_LINE_SECONDS
        names = ("return_mean", "eval_mean")
        self._series = [Series(name, parse=drawable_or_none) for name in names]
        self._fraction: float | None = 0.0

    def started(self, about: Mapping[str, str]) -> None:
        if self._say:
            for line in format_start(self._run, self._config, about):
                self._say(line)

    def resumed(self, records: Sequence[Record]) -> None:
        for record in records:
            self._add(record)

    def generation(self, record: Record) -> None:
        self._pace.begin()
        self._add(record)
        self._line = format_generation(record, self._config)
        self._rewrite(self._line)
        if finite_or_none(record.get("return_mean")) is not None:
            self._trained = {name: record[name] for name in TRAINING_FIGURES if name in record}
        if self._callback is not None and self.keeps_going:
            self.keeps_going = self._callback({**record, **self._trained}) is not False

    def live(self, figures: Record) -> None:
        if left := self._pace.format_left(figures, is_steady=True):
            self._rewrite(f"{self._line} | {left}" if self._line else left)

    def note(self, text: str) -> None:
        if self._say:
            self._say(text)
        else:
            warnings.warn(text, stacklevel=2)

    def summary(self, record: Record) -> None:
        self._fraction = 1.0
        self._rewrite(format_summary(record, self._config)[0], is_last=True)

    def _add(self, record: Record) -> None:
        if self._show is None:
            return
        for series in self._series:
            series.add(record)
        seconds, left = (finite_or_none(record.get(name)) for name in ("seconds", "eta"))
        self._fraction = None if not seconds or left is None else seconds / (seconds + left)

    def _rewrite(self, text: str, *, is_last: bool = False) -> None:
        now = self._clock()
        if self._show is not None and (is_last or now - self._last_time >= LEAST_LINE_SECONDS):
            self._last_time = now
            self._show(text, self._draw, is_last)

    def _draw(self, text: str) -> str:
        """A browser's own bar, which without a budget only shows that work is under way."""
        value = "" if self._fraction is None else f' value="{self._fraction:.4f}"'
        bar = f'<progress max="1"{value} style="width:{WIDTH // 3}px"></progress>'
        curve = draw_curve(*(series.points("env_steps") for series in self._series))
        return f"<div>{bar} {html.escape(text)}</div>{curve}"


def line_display(out: SafeStream) -> Show:
    """Rewrites one line."""
    width = 0

    def show(text: str, draw: Callable[[str], str], is_last: bool) -> None:
        nonlocal width
        out.write(f"\r{text:{width}}" + "\n" * is_last)
        out.flush()
        width = len(text)

    return show


def notebook_display() -> Show | None:
    """Shows HTML in the cell that runs now; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    # optional: a notebook has IPython
    from IPython.display import DisplayHandle, display

    handle = DisplayHandle()
    has_shown = False

    def show(text: str, draw: Callable[[str], str], is_last: bool) -> None:
        nonlocal has_shown
        bundle = {"text/html": draw(text), "text/plain": text}
        if has_shown:
            handle.update(bundle, raw=True)
        else:
            display(bundle, raw=True, display_id=handle.display_id)
        has_shown = True

    return show


def draw_curve(returns: Points, evaluations: Points) -> str:
    """An SVG figure over environment steps; empty for fewer than two points."""
    points = returns + evaluations
    if len({steps for steps, _ in points}) < 2:
        return ""
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    across, up = (WIDTH - 2 * MARGIN) / (right - left), (HEIGHT - 3 * MARGIN) / (high - low or 1.0)

    def places(points: Points) -> list[str]:
        return [
            f"{MARGIN + (x - left) * across:.1f},{HEIGHT - 2 * MARGIN - (y - low) * up:.1f}"
            for x, y in points
        ]

    lines = "".join(
        f'<polyline points="{" ".join(shown)}" fill="none" stroke="{colour}"/>'
        for shown, colour in ((places(returns), "#999"), (places(evaluations), "#1f77b4"))
    )
    dots = "".join(
        '<circle cx="{}" cy="{}" r="2.5" fill="#1f77b4"/>'.format(*place.split(","))
        for place in places(evaluations)
    )
    labels = (
        (MARGIN, MARGIN - 3, "start", format_score(high)),
        (MARGIN, HEIGHT - MARGIN, "start", format_score(low)),
        (WIDTH - MARGIN, HEIGHT - 2, "end", f"{format_compact(right)} steps"),
        (WIDTH - MARGIN, MARGIN - 3, "end", "grey: training, blue: evaluations"),
    )
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'
        for x, y, anchor, text in labels
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" font-size="11" font-family="sans-serif" '
        f'fill="currentColor">{lines}{dots}{texts}</svg>'
    )
