"""A study on a terminal: one table that is redrawn in place, with notes above it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.panel import Panel
from rich.text import Text

from es_queue.security.sanitize import sanitize
from master.display.format import (
    format_compact,
    format_progress,
    format_score,
    format_whole,
)
from master.display.log_view import SafeStream
from master.display.terminal import FittingTable, LivePanel, make_panel
from master.sweep.record import FAILED, FINISHED, RUNNING, STOPPED, WAITING, SweepRecord
from master.sweep.view import SeedRow, SweepView, format_note, format_result, format_start

#: Frame, head and the line for what does not fit.
OTHER_ROWS = 5
COLUMNS = ("seed", "state", "generation", "steps", "last eval", "best eval", "steps/s", "workers")
#: Left out, in this order, where the terminal is too narrow.
EXPENDABLE = ("workers", "best eval", "steps/s", "generation", "last eval")
STYLES = {FINISHED: "green", FAILED: "red", STOPPED: "yellow", WAITING: "dim"}


class SweepTableView(SweepView):
    def __init__(self, out: SafeStream, record: SweepRecord) -> None:
        self._record = record
        self._rows: Sequence[SeedRow] = ()
        self._panel = LivePanel(out, self._render)

    def started(self, about: Mapping[str, str]) -> None:
        for line in format_start(self._record, about, self._panel.width):
            self._panel.print_line(line)

    def note(self, text: str, seed: int | None = None) -> None:
        self._panel.print_line(format_note(text, seed))

    def draw(self, rows: Sequence[SeedRow]) -> None:
        self._rows = rows
        self._panel.draw()

    def ended(self, record: SweepRecord) -> None:
        self.close()
        for line in format_result(record):
            self._panel.print_line(line)

    def close(self) -> None:
        self._panel.close()

    def _render(self) -> Panel:
        config = self._record.config
        rows = fitting_rows(self._rows, self._panel.height - OTHER_ROWS)
        cells = [
            [Text(cell, STYLES.get(row.state, "")) for cell in self._format_cells(row)]
            for row in rows
        ]
        if hidden := len(self._rows) - len(rows):
            cells.append([Text("…"), Text(f"and {hidden} more", "dim"), *[Text()] * 6])
        return make_panel(
            FittingTable(COLUMNS, cells, set(COLUMNS) - {"state"}, EXPENDABLE),
            f"{self._record.run} · {sanitize(config.task, 60)} · {config.strategy}, "
            f"{config.policy_name}",
        )

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
    """Runs that train, then those that wait, then those that have ended; in their order."""
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
