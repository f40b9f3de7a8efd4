"""The generated parts of docs/results.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from es_queue.numerics.statistics import aggregate
from tools.results.stored import DOCS, StoredRow, StoredRun
from tools.results.survival import median_time

PAGE = DOCS / "results.md"
MARKS = "<!-- {name}: begin -->\n", "<!-- {name}: end -->\n"
UNKNOWN = "-"
#: CPU of a run of CartPole with one generation and one final episode.
START_SECONDS = 1.2

TABLE_HEAD = """\
| environment | seeds | median | IQM | steps, million | CPU seconds | published figure |
|---|---|---|---|---|---|---|
"""
THRESHOLD_HEAD = """\
| environment | threshold | reached by | steps, million | CPU seconds |
|---|---|---|---|---|
"""
SEEDS_HEAD = """\
| environment | command, with `--seed N` | means of the seeds in order |
|---|---|---|
"""


def write_page(rows: list[StoredRow]) -> None:
    PAGE.write_text(updated_page(PAGE.read_text(), rows))


def updated_page(page: str, rows: list[StoredRow]) -> str:
    """The text of docs/results.md, with its tables made of ``rows``."""
    page = replace_part(page, "table", TABLE_HEAD + "".join(map(table_line, rows)))
    timed = [row for row in rows if row.threshold is not None]
    page = replace_part(page, "thresholds", THRESHOLD_HEAD + "".join(map(threshold_line, timed)))
    return replace_part(page, "seeds", SEEDS_HEAD + "".join(map(seeds_line, rows)))


def replace_part(page: str, name: str, text: str) -> str:
    begin, end = (mark.format(name=name) for mark in MARKS)
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end)[1]


def seeds_line(row: StoredRow) -> str:
    """The row's command, and the figure of every run."""
    own = "" if row.stock else " The runs' own final evaluations."
    note = f" {row.note}" if row.note else ""
    means = ", ".join(number(run.mean, row.digits) for run in row.runs)
    return line((row.environment, f"`{row.command}`{own}{note}", means))


def mean_and_std(run: StoredRun, digits: int) -> str:
    return f"{number(run.mean, digits)} ± {number(run.std, digits)}"


def table_line(row: StoredRow) -> str:
    means = [run.mean for run in row.runs]
    cells = (
        row.environment,
        str(len(means)),
        number(row.median, row.digits),
        iqm_cell(means, row.digits),
        spread([run.env_steps for run in row.runs], 1e6, 2),
        spread([run.cpu_seconds for run in row.runs], 1, 0),
        rival_cell(row),
    )
    return line(cells)


def iqm_cell(means: list[float], digits: int) -> str:
    """The interquartile mean with its interval; one seed has none."""
    statistic = aggregate(means)
    if statistic.iqm_interval is None:
        return UNKNOWN
    interval = " to ".join(number(end, digits) for end in statistic.iqm_interval)
    return f"{number(statistic.iqm, digits)} [{interval}]"


def rival_cell(row: StoredRow) -> str:
    """The published figure, and how far the median is below it."""
    rival = row.rival
    if rival.reward is None:
        return rival.source
    digits = 0 if rival.figure.startswith("about") else row.digits
    below = rival.reward - row.median
    distance = (
        "not below it" if round(below, digits) <= 0 else f"**{number(below, digits)} below it**"
    )
    more = f"; {rival.more}" if rival.more else ""
    return f"{rival.figure} at {rival.million_steps} ({rival.source}): {distance}{more}"


def threshold_line(row: StoredRow) -> str:
    """Runs that missed the threshold count as not yet there when they ended."""
    reached = [run.threshold_steps is not None for run in row.runs]
    steps = [
        float(run.env_steps if run.threshold_steps is None else run.threshold_steps)
        for run in row.runs
    ]
    seconds = [
        START_SECONDS + (run.cpu_seconds - START_SECONDS) * step / run.env_steps
        for run, step in zip(row.runs, steps, strict=True)
        if run.cpu_seconds
    ]
    cells = (
        row.environment,
        UNKNOWN if row.threshold is None else f"{row.threshold:,}",
        f"{sum(reached)} of {len(reached)}",
        millions(median_time(steps, reached)),
        number(median_time(seconds, reached), 0) if len(seconds) == len(steps) else UNKNOWN,
    )
    return line(cells)


def spread(values: Sequence[float | None], unit: float, digits: int) -> str:
    """Median of the known values, and in brackets the least and the greatest of several."""
    known = [value / unit for value in values if value is not None]
    if not known:
        return UNKNOWN
    middle = number(statistics.median(known), digits)
    if len(known) == 1:
        return middle
    return f"{middle} ({number(min(known), digits)} to {number(max(known), digits)})"


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def millions(steps: float | None) -> str:
    return number(None if steps is None else steps / 1e6, 2)


def number(value: float | None, digits: int) -> str:
    """With thousands separated, or ``-`` for an unknown one."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def is_current(rows: list[StoredRow]) -> bool:
    """Whether the page is as ``write_page`` would write it."""
    text = PAGE.read_text()
    return updated_page(text, rows) == text
