"""Bars in groups with whiskers and one line through all of them, as a plain SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860.0, 420.0, 60.0, 90.0, 60.0, 70.0
PAPER, GRID, INK = 'fill="#fff"', 'stroke="#ddd"', 'stroke="#222"'
DARK = f'{INK} stroke-width="1.5"'
COLOURS = ("#d1495b", "#4a7fb0", "#5fa777", "#a684bd", "#c98a2b")


@dataclass(frozen=True)
class Bar:
    """One bar. whisker: drawn as far above its end as below."""

    group: str
    name: str
    value: float
    whisker: float


def ticks(most: float) -> list[float]:
    """Round values from 0 to at least ``most``, four to nine of them."""
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if most / (factor * power) <= 8)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def drawing(bars: Sequence[Bar], title: str, line: tuple[float, str], below: str) -> str:
    """The chart: groups side by side, names as a legend. line: a value and what it is called."""
    groups, names = (
        list(dict.fromkeys(bar.group for bar in bars)),
        list(dict.fromkeys(bar.name for bar in bars)),
    )
    marks = ticks(max(line[0], *(bar.value + bar.whisker for bar in bars)))
    scale = (HEIGHT - TOP - BOTTOM) / marks[-1]

    def high(value: float) -> float:
        return HEIGHT - BOTTOM - scale * value

    found = [
        (
            f'<line {GRID} x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{high(mark):.1f}" '
            f'y2="{high(mark):.1f}"/><text x="{LEFT - 8}" y="{high(mark) + 4:.1f}" '
            f'text-anchor="end">{mark:g}</text>'
        )
        for mark in marks
    ]
    each = (WIDTH - LEFT - RIGHT) / len(groups)
    width = each * 0.75 / len(names)
    for bar in bars:
        place = names.index(bar.name)
        left = LEFT + each * groups.index(bar.group) + each * 0.125 + width * place
        middle, colour = left + width / 2, COLOURS[place % len(COLOURS)]
        found.append(
            f'<rect x="{left + 2:.1f}" y="{high(bar.value):.1f}" width="{width - 4:.1f}" '
            f'height="{scale * bar.value:.1f}" fill="{colour}"/>'
        )
        found.append(
            f'<line {DARK} x1="{middle:.1f}" x2="{middle:.1f}" '
            f'y1="{high(bar.value + bar.whisker):.1f}" '
            f'y2="{high(bar.value - bar.whisker):.1f}"/>'
        )
        found.append(
            f'<text fill="#fff" x="{middle:.1f}" y="{high(0) - 8:.1f}" '
            f'text-anchor="middle">{bar.value:.1f}</text>'
        )
    for number, group in enumerate(groups):
        found.append(
            f'<text x="{LEFT + each * (number + 0.5):.1f}" y="{HEIGHT - BOTTOM + 20:.1f}" '
            f'text-anchor="middle">{escape(group)}</text>'
        )
    for number, name in enumerate(names):
        left = LEFT + 150 * number
        found.append(
            f'<rect x="{left}" y="{HEIGHT - 32}" width="12" height="12" '
            f'fill="{COLOURS[number % len(COLOURS)]}"/><text x="{left + 18}" '
            f'y="{HEIGHT - 22}">{escape(name)}</text>'
        )
    value, said = line
    found.append(
        f'<line {DARK} stroke-dasharray="6 4" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
        f'y1="{high(value):.1f}" y2="{high(value):.1f}"/><text x="{WIDTH - RIGHT + 6}" '
        f'y="{high(value) + 4:.1f}">{escape(said)}</text>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'width="{WIDTH:g}" height="{HEIGHT:g}" font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH:g}" height="{HEIGHT:g}" {PAPER}/>'
    )
    words = (
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text><text x="{LEFT}" '
        f'y="42">{escape(below)}</text>'
    )
    return "\n".join([head, words, *found, "</svg>", ""])
