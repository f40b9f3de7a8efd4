"""A study on a terminal: one small table that is redrawn in place, with notes above it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from es_queue.security.sanitize import sanitize
from master.display.format import (
    COLUMN_GAP,
    fitting_columns,
    format_compact,
    format_progress,
    format_score,
    format_whole,
)
from master.display.live_panel import MOST_WIDTH, LivePanel
from master.display.log_view import SafeStream
from master.sweep.record import FAILED, FINISHED, RUNNING, STOPPED, WAITING, SweepRecord
from master.sweep.view import SeedRow, format_note, format_result, format_start

#: Frame, head and the line for what does not fit.
OTHER_ROWS = 5
#: The frame's columns, its padding included.
FRAME_WIDTH = 4
COLUMNS = ("seed", "state", "generation", "steps", "last eval", "best eval", "steps/s", "workers")
#: Left out, in this order, where the terminal is too narrow.
EXPENDABLE = ("workers", "best eval", "steps/s", "generation", "last eval")
STYLES = {FINISHED: "green", FAILED: "red", STOPPED: "yellow", WAITING: "dim"}


class SweepTableView(LivePanel):
    """A study's seeds in the panel, one a row."""

    def __init__(
        self, out: SafeStream, record: SweepRecord, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(out, clock)
        self._record = record
        self._rows: Sequence[SeedRow] = ()

    def started(self, about: Mapping[str, str]) -> None:
        for line in format_start(self._record, about):
            self._print_line(line)

    def event(self, row: SeedRow, event: Mapping[str, Any]) -> None:
        """The table says it."""

    def note(self, text: str, seed: int | None = None) -> None:
        self._print_line(format_note(text, seed))

    def draw(self, rows: Sequence[SeedRow]) -> None:
        self._rows = rows
        self._draw()

    def ended(self, record: SweepRecord) -> None:
        self.close()
        for line in format_result(record):
            self._print_line(line)

    def _render(self) -> RenderableType:
        width = min(MOST_WIDTH, self._console.width)
        rows = fitting_rows(self._rows, self._console.height - OTHER_ROWS)
        cells = [self._format_cells(row) for row in rows]
        table = Table(
            box=None, padding=(0, COLUMN_GAP, 0, 0), pad_edge=False, header_style="dim", expand=True
        )
        widths = [max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
        kept = fitting_columns(COLUMNS, widths, EXPENDABLE, width - FRAME_WIDTH - COLUMN_GAP)
        for place in kept:
            table.add_column(
                COLUMNS[place],
                justify="left" if COLUMNS[place] == "state" else "right",
                no_wrap=True,
            )
        for row, texts in zip(rows, cells, strict=True):
            table.add_row(*(Text(texts[place], STYLES.get(row.state, "")) for place in kept))
        if hidden := len(self._rows) - len(rows):
            table.add_row("…", Text(f"and {hidden} more", "dim"))
        config = self._record.config
        title = Text(
            f"{self._record.run} · {sanitize(config.task, 60)} · {config.strategy}, "
            f"{config.policy_name}"
        )
        return Panel(table, title=title, title_align="left", width=width, border_style="dim")

    def _format_cells(self, row: SeedRow) -> list[str]:
        get, config = row.figures.get, self._record.config
        return [
            str(row.seed),
            row.state,
            "-"
            if get("generation") is None
            else format_progress(get("generation"), config.generations),
            format_compact(get("env_steps")),
            format_score(get("eval_mean")),
            format_score(get("eval_best")),
            *(
                (format_whole(get("steps_per_second")), format_whole(get("workers")))
                if row.state == RUNNING
                else ("", "")
            ),
        ]


def fitting_rows(rows: Sequence[SeedRow], height: int) -> Sequence[SeedRow]:
    """As many rows as fit, in their order: those that run, then those that wait, then those that
    have ended.
    """
    if len(rows) <= max(height, 1):
        return rows
    order = sorted(
        range(len(rows)),
        key=lambda place: (
            rows[place].state in (FINISHED, STOPPED, FAILED),
            rows[place].state == WAITING,
            place,
        ),
    )
    return [rows[place] for place in sorted(order[: max(height, 1)])]
