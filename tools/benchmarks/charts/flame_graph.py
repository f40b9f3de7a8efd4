"""A flame graph as a plain SVG: no script, a tooltip a frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

Stack = tuple[str, ...]

WIDTH, ROW, HEAD, LETTER = 1200.0, 17, 40, 6.4
#: Narrower frames are left out, in pixels.
LEAST = 1.0
#: Colours by where a frame's code stands; the last one is for everything else.
COLOURS = (
    ("workers/", "#f4a259"),
    ("es_queue/", "#f6d365"),
    ("envpool/", "#9bc4e2"),
    (".py", "#c9d6a3"),
    ("", "#d7dbe0"),
)


@dataclass
class Frame:
    """A frame under its callers, and the samples in it and below."""

    name: str
    count: int = 0
    below: dict[str, Frame] = field(default_factory=dict)


def tree(stacks: Iterable[tuple[Stack, int]]) -> Frame:
    """The stacks put together, under one frame for all."""
    root = Frame("all")
    for stack, count in stacks:
        root.count += count
        at = root
        for name in stack:
            at = at.below.setdefault(name, Frame(name))
            at.count += count
    return root


def drawing(stacks: Iterable[tuple[Stack, int]], title: str) -> str:
    """The graph, callers above, the widest of a caller's frames first."""
    root = tree(stacks)
    boxes: list[str] = []
    depth = draw(root, root.count, 0.0, 0, boxes)
    height = HEAD + ROW * depth + 10
    style = "text{font:11px sans-serif;fill:#222}rect{stroke:#fff;stroke-width:.5}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height}" '
        f'width="{WIDTH:g}" height="{height}"><style>{style}</style>'
    )
    back = (
        f'<rect fill="#fff" width="{WIDTH:g}" height="{height}"/>'
        '<text x="8" y="22" style="font-size:14px">'
        f"{escape(title)} ({root.count:,} samples)</text>"
    )
    return "\n".join([head, back, *boxes, "</svg>", ""])


def draw(frame: Frame, whole: int, left: float, depth: int, boxes: list[str]) -> int:
    """Add the frame's box and those below it; how many rows that makes."""
    width = WIDTH * frame.count / whole if whole else 0.0
    if width < LEAST:
        return depth
    top, share = HEAD + ROW * depth, 100 * frame.count / whole
    letters = int((width - 4) / LETTER)
    label = (
        frame.name
        if len(frame.name) <= letters
        else frame.name[: letters - 1] + "…"
        if letters > 3
        else ""
    )
    colour = next(colour for mark, colour in COLOURS if mark in frame.name)
    text = f'<text x="{left + 3:.1f}" y="{top + 12}">{escape(label)}</text>' if label else ""
    boxes.append(
        f'<g><title>{escape(frame.name)}: {share:.1f} %</title><rect x="{left:.1f}" '
        f'y="{top}" width="{width:.1f}" height="{ROW - 1}" fill="{colour}"/>{text}</g>'
    )
    rows = depth + 1
    for one in sorted(frame.below.values(), key=lambda one: -one.count):
        rows = max(rows, draw(one, whole, left, depth + 1, boxes))
        left += WIDTH * one.count / whole
    return rows
