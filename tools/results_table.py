"""The rows in docs/results.md: the command of each environment, and its figures by seed."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from es_queue.util.number_ranges import parse_number_ranges

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results.md"
#: mean ± standard deviation, thousands with commas
FIGURE = re.compile(r"(-?[\d,]+(?:\.\d+)?) ± ([\d,]+(?:\.\d+)?)")


@dataclass(frozen=True)
class Figure:
    """Mean and standard deviation of the returns of 100 episodes, printed with ``digits``
    decimals.
    """

    mean: float
    std: float
    digits: int = 1


@dataclass(frozen=True)
class StoredRow:
    """environment: the row's name; command: its words, without ``--seeds`` and the seeds; figures:
    by seed
    """

    environment: str
    command: tuple[str, ...]
    figures: dict[int, Figure]


def stored_row(environment: str, page: str) -> StoredRow:
    """The row of an environment in the text of the page. Raises ValueError, in one sentence, if
    there is none, or if it lacks a figure for a seed of its command.
    """
    rows = {cells[0]: cells for cells in map(split_cells, page.splitlines()) if len(cells) == 7}
    if environment not in rows:
        raise ValueError(f"docs/results.md has no row {environment!r}")
    words = shlex.split(rows[environment][1].strip("`"))
    if "--seeds" not in words[:-1]:
        raise ValueError(f"the row {environment} names no command with --seeds")
    place = words.index("--seeds")
    seeds = parse_number_ranges(words.pop(place + 1), "seed", 100, 10**9)
    words.pop(place)
    figures = [parse_figure(*pair) for pair in FIGURE.findall(rows[environment][2])]
    if len(figures) != len(seeds):
        raise ValueError(
            f"the row {environment} has {len(figures)} figures, but {len(seeds)} seeds"
        )
    return StoredRow(environment, tuple(words), dict(zip(seeds, figures, strict=True)))


def parse_figure(mean: str, std: str) -> Figure:
    """Of two numbers such as 1,237.1, with as many decimals as the mean has."""
    digits = len(mean.partition(".")[2])
    return Figure(float(mean.replace(",", "")), float(std.replace(",", "")), digits)


def split_cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table; empty for another line."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if "|" in line else []
