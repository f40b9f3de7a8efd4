"""Lines over two logarithmic axes, as a plain SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from tools.benchmarks.charts.bar_chart import COLOURS, DARK, GRID, PAPER

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860.0, 420.0, 70.0, 120.0, 50.0, 60.0
LINE = 16.0
DASHES = ("none", "8 4", "2 4", "8 4 2 4")


@dataclass(frozen=True)
class Line:
    """Points (x, y), all above 0, by rising x; the name is written at the last one. Lines of a
    ``group`` have one colour and different dashes.
    """

    name: str
    points: Sequence[tuple[float, float]]
    group: str = ""


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from ``low`` to ``high`` over pixels from ``first`` to ``last``."""

    low: float
    high: float
    first: float
    last: float

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.first + share * (self.last - self.first)


def powers(low: float, high: float) -> list[float]:
    """Powers of ten around both values."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def drawing(
    lines: Sequence[Line], title: str, marks: Sequence[float], names: tuple[str, str]
) -> str:
    """The chart. marks: of the horizontal axis; names: of the axes"""
    heights = [y for line in lines for _, y in line.points]
    levels = powers(min(heights), max(heights))
    across = Axis(marks[0], marks[-1], LEFT, WIDTH - RIGHT)
    up = Axis(levels[0], levels[-1], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<line {GRID} x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up.place(level):.1f}" '
        f'y2="{up.place(level):.1f}"/><text x="{LEFT - 8}" y="{up.place(level) + 4:.1f}" '
        f'text-anchor="end">{level:g}</text>'
        for level in levels
    ]
    parts += [
        f'<text x="{across.place(mark):.1f}" y="{HEIGHT - BOTTOM + 20}" '
        f'text-anchor="middle">{mark:,g}</text>'
        for mark in marks
    ]
    names_at = spread([up.place(line.points[-1][1]) for line in lines])
    groups = list(dict.fromkeys(line.group for line in lines))
    for line, name_at in zip(lines, names_at, strict=True):
        members = [other for other in lines if other.group == line.group]
        colour = COLOURS[groups.index(line.group) % len(COLOURS)]
        dash = DASHES[members.index(line) % len(DASHES)]
        parts.append(drawn(line, (colour, dash), (across, up), name_at))
    parts += [
        f'<line {DARK} x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" '
        f'y2="{HEIGHT - BOTTOM}"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        f"{escape(names[0])}</text>",
        f'<text x="{LEFT - 58}" y="{TOP - 10}">{escape(names[1])}</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'font-family="sans-serif" font-size="13">'
        f'<rect width="100%" height="100%" {PAPER}/>{"".join(parts)}</svg>\n'
    )


def spread(heights: Sequence[float]) -> list[float]:
    """Heights of names beside these, none closer than a line of text to another."""
    places = list(heights)
    order = sorted(range(len(places)), key=places.__getitem__)
    for above, below in pairwise(order):
        places[below] = max(places[below], places[above] + LINE)
    return places


def drawn(line: Line, style: tuple[str, str], axes: tuple[Axis, Axis], name_at: float) -> str:
    """A line in a colour and with dashes, with its name at that height."""
    (colour, dash), (across, up) = style, axes
    places = [(across.place(x), up.place(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x = places[-1][0]
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dash}"/>'
        f'<text x="{x + 8:.1f}" y="{name_at + 4:.1f}" fill="{colour}">{escape(line.name)}</text>'
    )
