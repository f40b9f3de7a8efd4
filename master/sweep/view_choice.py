"""Choose the view of a sweep: a live table, log lines, or JSON lines."""

from __future__ import annotations

from master.display.log_view import SafeStream
from master.sweep.record import SweepRecord
from master.sweep.view import SweepJsonView, SweepLogView, SweepView


def make_view(out: SafeStream, record: SweepRecord, *, quiet: bool, json_lines: bool) -> SweepView:
    """The view that fits the flags and the stream."""
    if json_lines:
        return SweepJsonView(out, record, quiet)
    if not quiet and out.is_terminal:
        from master.sweep.table import SweepTableView  # start-up: rich; logs do not need it

        return SweepTableView(out, record)
    return SweepLogView(out, record, quiet)
