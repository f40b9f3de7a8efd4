"""A run in a notebook: a bar towards its budget, its newest figures, and its curve, redrawn in
place.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence

from es_queue.config.run_config import RunConfig
from master.display.format import (
    Record,
    drawable_or_none,
    finite_or_none,
    format_compact,
    format_score,
)
from master.display.log_view import ProgressLine, SafeStream

#: Of the figure, in pixels; the curve keeps clear of its edges.
WIDTH, HEIGHT, MARGIN = 600, 180, 14
#: A longer curve is drawn with every second point, and so on.
MOST_POINTS = 400

#: Replaces the previous output by HTML, or by its text if the front end shows no HTML.
Show = Callable[[str, str], None]
Points = list[tuple[float, float]]


class NotebookView(ProgressLine):
    """A ProgressLine with a bar and a curve: training returns, and evaluations with a dot each."""

    def __init__(
        self,
        callback: Callable[[Record], bool | None] | None,
        show: Show,
        config: RunConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(callback, SafeStream(None), config, clock)
        self._show_html = show
        self._returns: Points = []
        self._evaluations: Points = []
        self._fraction: float | None = 0.0

    def resumed(self, records: Sequence[Record]) -> None:
        for record in records:
            self._add(record)

    def generation(self, record: Record) -> None:
        self._add(record)
        super().generation(record)

    def summary(self, record: Record) -> None:
        self._fraction = 1.0
        super().summary(record)

    def _add(self, record: Record) -> None:
        steps = drawable_or_none(record.get("env_steps")) or 0.0
        for points, name in ((self._returns, "return_mean"), (self._evaluations, "eval_mean")):
            if (value := drawable_or_none(record.get(name))) is not None:
                points.append((steps, value))
        self._fraction = budget_fraction(record, self._config)

    def _show(self, text: str) -> None:
        self._show_html(
            f"<div>{format_progress_bar(self._fraction)} {html.escape(text)}</div>"
            f"{draw_curve(self._returns, self._evaluations)}",
            text,
        )


def budget_fraction(record: Record, config: RunConfig) -> float | None:
    """How much of the nearest budget is used; None without a budget."""
    limits = {
        "generation": config.generations,
        "env_steps": config.max_steps,
        "seconds": config.max_seconds,
    }
    done = {name: finite_or_none(record.get(name)) or 0.0 for name in limits}
    used = [done[name] / limit for name, limit in limits.items() if limit]
    return min(1.0, max(used)) if used else None


def format_progress_bar(fraction: float | None) -> str:
    """A browser's own bar; without a fraction, it only shows that work is under way."""
    value = "" if fraction is None else f' value="{fraction:.4f}"'
    return f'<progress max="1"{value} style="width:{WIDTH // 3}px"></progress>'


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
            for x, y in thinned(points)
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


def thinned(points: Points) -> Points:
    """At most MOST_POINTS of them, evenly, and the last."""
    step = -(-len(points) // MOST_POINTS) or 1
    return points[::step] + (points[-1:] if (len(points) - 1) % step else [])


def notebook_display() -> Show:
    """Shows HTML in the cell that runs now."""
    # optional: a notebook has IPython
    from IPython.display import DisplayHandle, display

    handle = DisplayHandle()
    has_shown = False

    def show(markup: str, text: str) -> None:
        nonlocal has_shown
        bundle = {"text/html": markup, "text/plain": text}
        if has_shown:
            handle.update(bundle, raw=True)
        else:
            display(bundle, raw=True, display_id=handle.display_id)
        has_shown = True

    return show
