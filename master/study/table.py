"""A study on a terminal: one small table that is redrawn in place, with notes above it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from master.console import SafeStream
from master.panel import WIDEST, LivePanel
from master.study.record import FAILED, FINISHED, RUNNING, STOPPED, WAITING, StudyRecord
from master.study.view import Row, noted, result_lines, started_lines
from master.wording import GAP, compact, kept_columns, printable, progress_of, score, whole

#: Frame, head and the line for what does not fit.
ROWS_BESIDE = 5
#: The frame's columns, its padding included.
FRAME = 4
COLUMNS = ("seed", "state", "generation", "steps", "last eval", "best eval", "steps/s", "workers")
#: Left out, in this order, where the terminal is too narrow.
EXPENDABLE = ("workers", "best eval", "steps/s", "generation", "last eval")
STYLES = {FINISHED: "green", FAILED: "red", STOPPED: "yellow", WAITING: "dim"}


class StudyTable(LivePanel):
    """A study's seeds in the panel, one a row."""

    def __init__(self, out: SafeStream, record: StudyRecord, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(out, clock)
        self._record = record
        self._rows: Sequence[Row] = ()

    def started(self, about: Mapping[str, str]) -> None:
        for line in started_lines(self._record, about):
            self._print(line)

    def event(self, row: Row, event: Mapping[str, Any]) -> None:
        """The table says it."""

    def note(self, text: str, seed: int | None = None) -> None:
        self._print(noted(text, seed))

    def draw(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._draw()

    def ended(self, record: StudyRecord) -> None:
        self.close()
        for line in result_lines(record):
            self._print(line)

    def _panel(self) -> RenderableType:
        width = min(WIDEST, self._console.width)
        shown = fitting(self._rows, self._console.height - ROWS_BESIDE)
        cells = [self._cells(row) for row in shown]
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim", expand=True)
        widths = [max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
        kept = kept_columns(COLUMNS, widths, EXPENDABLE, width - FRAME - GAP)
        for place in kept:
            table.add_column(COLUMNS[place], justify="left" if COLUMNS[place] == "state" else "right", no_wrap=True)
        for row, texts in zip(shown, cells, strict=True):
            table.add_row(*(Text(texts[place], STYLES.get(row.state, "")) for place in kept))
        if hidden := len(self._rows) - len(shown):
            table.add_row("…", Text(f"and {hidden} more", "dim"))
        config = self._record.config
        title = Text(f"{self._record.run} · {printable(config.task, 60)} · {config.strategy}, {config.policy_name}")
        return Panel(table, title=title, title_align="left", width=width, border_style="dim")

    def _cells(self, row: Row) -> list[str]:
        told, config = row.figures.get, self._record.config
        return [
            str(row.seed), row.state, "-" if told("generation") is None else progress_of(told("generation"), config.generations), compact(told("env_steps")),
            score(told("eval_mean")), score(told("eval_best")),
            *((whole(told("steps_per_second")), whole(told("workers"))) if row.state == RUNNING else ("", "")),
        ]  # fmt: skip


def fitting(rows: Sequence[Row], height: int) -> Sequence[Row]:
    """As many rows as fit, in their order: those that run, then those that wait, then those that have ended."""
    if len(rows) <= max(height, 1):
        return rows
    order = sorted(range(len(rows)), key=lambda place: (rows[place].state in (FINISHED, STOPPED, FAILED), rows[place].state == WAITING, place))
    return [rows[place] for place in sorted(order[: max(height, 1)])]
