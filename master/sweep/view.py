"""Shows a study as log lines, JSON lines or a table that is redrawn in place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from es_queue.config.scaling import scaled
from es_queue.numerics.statistics import Interval
from es_queue.text import sanitize
from master.display.log_view import (
    NO_LIMIT,
    SafeStream,
    format_generation,
    format_json_line,
    format_labelled,
)
from master.run.launch import Launch
from master.status.figures import (
    finite_or_none,
    format_compact,
    format_mean_std,
    format_progress,
    format_score,
    format_whole,
)
from master.sweep.record import FAILED, FINISHED, RUNNING, STOPPED, WAITING, Seed, Study

#: A line of a seed at most so often, evaluations apart.
LINE_SECONDS = 10.0
#: Frame, head and the line for what does not fit.
OTHER_ROWS = 5
COLUMNS = ("seed", "state", "generation", "steps", "last eval", "best eval", "steps/s", "workers")
#: Left out, in this order, where the terminal is too narrow.
EXPENDABLE = ("workers", "best eval", "steps/s", "generation", "last eval")
STYLES = {FINISHED: "green", FAILED: "red", STOPPED: "yellow", WAITING: "dim"}


class StudyView:
    """One way to show a study; a view omits methods that it does not need.

    event: what a run's es-master has written; draw: called several times per second
    """

    def started(self, about: Mapping[str, str]) -> None: ...
    def event(self, seed: Seed, event: Mapping[str, Any]) -> None: ...
    def note(self, text: str, seed: int | None = None) -> None: ...
    def draw(self) -> None: ...
    def ended(self) -> None: ...
    def close(self) -> None: ...


class LogView(StudyView):
    """Plain lines; ``quiet`` keeps only notes and the end."""

    def __init__(
        self,
        out: SafeStream,
        record: Study,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._study, self._quiet, self._clock = out, record, quiet, clock
        self._last_printed: dict[int, float] = {}

    def started(self, about: Mapping[str, str]) -> None:
        for line in () if self._quiet else format_start(self._study, about):
            self._out.write_line(line)

    def event(self, seed: Seed, event: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        if event["event"] == "summary":
            ended = Seed(seed.seed, "", str(event.get("state")), True, summary=dict(event))
            self._out.write_line(
                f"seed {seed.seed}: {sanitize(event.get('state'))}: {format_outcome(ended)}"
            )
        if event["event"] != "generation":
            return
        evaluated = finite_or_none(event.get("eval_mean")) is not None
        if (
            evaluated
            or self._clock() - self._last_printed.get(seed.seed, -LINE_SECONDS) >= LINE_SECONDS
        ):
            self._last_printed[seed.seed] = self._clock()
            self._out.write_line(
                f"seed {seed.seed}: {format_generation(event, self._study.config)}"
            )

    def note(self, text: str, seed: int | None = None) -> None:
        self._out.write_line(format_note(text, seed))

    def ended(self) -> None:
        for line in format_result(self._study):
            self._out.write_line(line)


class JsonView(StudyView):
    """JSON objects, one per line: those of the runs with ``seed`` and ``run`` added, and the
    study's own, ``study``.
    """

    def __init__(self, out: SafeStream, record: Study, quiet: bool) -> None:
        self._out, self._study, self._quiet = out, record, quiet

    def started(self, about: Mapping[str, str]) -> None:
        if not self._quiet:
            seeds = [entry.seed for entry in self._study.seeds]
            head = {"event": "study", "run": self._study.run, "state": self._study.state}
            self._write_event({**head, "seeds": seeds, **about})

    def event(self, seed: Seed, event: Mapping[str, Any]) -> None:
        if event["event"] == "summary" or not self._quiet:
            self._out.write_line(format_json_line({**event, "seed": seed.seed}))

    def note(self, text: str, seed: int | None = None) -> None:
        self._write_event({"event": "note", "text": sanitize(text, 1000), "seed": seed})

    def ended(self) -> None:
        self._write_event({"event": "study", **self._study.to_dict()})

    def _write_event(self, event: Mapping[str, Any]) -> None:
        self._out.write_line(json.dumps(event, allow_nan=False))


class TableView(StudyView):
    def __init__(self, out: SafeStream, record: Study) -> None:
        self._study = record
        # start-up: rich; logs do not need it
        from master.display.terminal import LivePanel

        self._panel = LivePanel(out, self._render)

    def started(self, about: Mapping[str, str]) -> None:
        for line in format_start(self._study, about, self._panel.width):
            self._panel.print_line(line)

    def note(self, text: str, seed: int | None = None) -> None:
        self._panel.print_line(format_note(text, seed))

    def draw(self) -> None:
        self._panel.draw()

    def ended(self) -> None:
        self.close()
        for line in format_result(self._study):
            self._panel.print_line(line)

    def close(self) -> None:
        self._panel.close()

    def _render(self) -> Any:
        # start-up: rich; logs do not need it
        from rich.text import Text

        from master.display.terminal import FittingTable, make_panel

        config = self._study.config
        rows = fitting_rows(self._study.seeds, self._panel.height - OTHER_ROWS)
        cells = [
            [Text(cell, STYLES.get(row.state, "")) for cell in self._format_cells(row)]
            for row in rows
        ]
        if hidden := len(self._study.seeds) - len(rows):
            cells.append([Text("…"), Text(f"and {hidden} more", "dim"), *[Text()] * 6])
        return make_panel(
            FittingTable(COLUMNS, cells, set(COLUMNS) - {"state"}, EXPENDABLE),
            f"{self._study.run} · {sanitize(config.task, 60)} · {config.strategy}, "
            f"{config.policy_name}",
        )

    def _format_cells(self, row: Seed) -> list[str]:
        get, config = row.figures.get, self._study.config
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


def fitting_rows(rows: Sequence[Seed], height: int) -> Sequence[Seed]:
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


def make_view(out: SafeStream, study: Study, launch: Launch) -> StudyView:
    if launch.json:
        return JsonView(out, study, launch.quiet)
    if not launch.quiet and out.is_terminal:
        return TableView(out, study)
    return LogView(out, study, launch.quiet)


# --- words


def format_start(record: Study, about: Mapping[str, str], columns: int = NO_LIMIT) -> list[str]:
    config = record.config
    population = scaled(config).population
    what = f"{config.strategy} with a {config.policy_name} policy, population {population}"
    description = f"{sanitize(config.task)}, {what}, {format_count(len(record.seeds), 'seed')}"
    return format_labelled(f"study {record.run}", description, about, columns)


def format_note(text: str, seed: int | None) -> str:
    return sanitize(text, 1000) if seed is None else f"seed {seed}: {sanitize(text, 1000)}"


def format_count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def format_result(record: Study) -> list[str]:
    """Each seed, then figures over them, and over how many."""
    figures, total = record.figures(), len(record.seeds)
    width = max(len(str(entry.seed)) for entry in record.seeds)
    lines = [
        f"study {record.run} {record.state}: "
        f"{sum(entry.state == FINISHED for entry in record.seeds)} of "
        f"{format_count(total, 'run')} finished"
    ]
    lines += [f"  seed {entry.seed:<{width}}  {format_outcome(entry)}" for entry in record.seeds]
    if not figures.count:
        return [*lines, "  no run has a final evaluation, so there is no figure to quote"]
    over = (
        format_count(total, "run")
        if figures.count == total
        else (
            f"{figures.count} of {format_count(total, 'run')}: the others are missing, not "
            "counted as 0"
        )
    )
    lines += [
        f"  final evaluations of {over}",
        f"  {'IQM':<8}{format_score(figures.iqm)}{format_interval(figures.iqm_interval)}",
        f"  {'mean':<8}{format_score(figures.mean)}{format_interval(figures.mean_interval)}",
        f"  {'median':<8}{format_score(figures.median)}",
        f"  {'worst':<8}{format_score(figures.worst)}",
    ]
    if figures.iqm_interval is None:
        lines.append("  no interval: fewer than 3 runs show nothing about the variation of others")
    if record.target is not None:
        lines.append(
            f"  {'target':<8}{format_score(record.target)} reached by "
            f"{record.count_reached()} of {format_count(total, 'run')}"
        )
    return lines


def format_interval(interval: Interval | None) -> str:
    return (
        ""
        if interval is None
        else f", 95 % interval {format_score(interval[0])} to {format_score(interval[1])}"
    )


def format_outcome(entry: Seed) -> str:
    summary = entry.summary or {}
    if entry.state == FAILED:
        return (
            f"failed with exit code {entry.code}{': ' + sanitize(entry.why) if entry.why else ''}"
        )
    if entry.state != FINISHED:
        at = (
            ""
            if finite_or_none(summary.get("generation")) is None
            else f" at generation {format_whole(summary['generation'])}"
        )
        return f"{entry.state}{at}, no final evaluation" if entry.begun else "not begun"
    steps = f"{format_compact(summary.get('env_steps'))} steps"
    if entry.evaluation is None:
        return f"finished after {steps} without a final evaluation"
    return (
        f"{format_mean_std(entry.evaluation, summary.get('eval_std'))}, min "
        f"{format_score(summary.get('eval_min'))}, after {steps}"
    )
