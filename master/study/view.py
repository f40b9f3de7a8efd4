"""How a study is shown: a table that is redrawn in place, lines in a pipe, JSON lines, or its end alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from es_queue.aggregates import Interval
from master.console import SafeStream, json_line
from master.study.record import FAILED, FINISHED, WAITING, Entry, StudyRecord
from master.wording import Value, compact, evaluation, finite, printable, progress_of, score, spread, whole

#: A line of a seed at most so often, evaluations apart.
LINE_SECONDS = 10.0
FIGURES = ("generation", "env_steps", "steps_per_second", "workers")


@dataclass
class Row:
    """What is shown of one seed: its run's state in a word, and the newest figures of its generations."""

    seed: int
    state: str = WAITING
    figures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Entry) -> Row:
        """What is known of a run from before."""
        row = cls(entry.seed, entry.state)
        row.hear(entry.summary or {})
        return row

    def hear(self, generation: Mapping[str, Any]) -> None:
        """Take over a generation's figures; those of the last evaluation stay until the next."""
        names = (*FIGURES, "eval_mean", "eval_best") if finite(generation.get("eval_mean")) is not None else FIGURES
        self.figures |= {name: generation[name] for name in names if name in generation}


class StudyView(Protocol):
    """One way to show a study."""

    def started(self, about: Mapping[str, str]) -> None: ...
    def event(self, row: Row, event: Mapping[str, Any]) -> None: ...
    def note(self, text: str, seed: int | None = None) -> None: ...
    def draw(self, rows: Sequence[Row]) -> None: ...
    def ended(self, record: StudyRecord) -> None: ...
    def close(self) -> None: ...


class StudyLog:
    """Plain lines; ``quiet`` leaves out all but notes and the end."""

    def __init__(self, out: SafeStream, record: StudyRecord, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._record, self._quiet, self._clock = out, record, quiet, clock
        self._said: dict[int, float] = {}

    def started(self, about: Mapping[str, str]) -> None:
        for line in () if self._quiet else started_lines(self._record, about):
            self._out.line(line)

    def event(self, row: Row, event: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        if event["event"] == "summary":
            ended = Entry(row.seed, "", str(event.get("state")), begun=True, summary=dict(event))
            self._out.line(f"seed {row.seed}: {printable(event.get('state'))}: {outcome(ended)}")
        if event["event"] != "generation":
            return
        evaluated = finite(event.get("eval_mean")) is not None
        if evaluated or self._clock() - self._said.get(row.seed, -LINE_SECONDS) >= LINE_SECONDS:
            self._said[row.seed] = self._clock()
            self._out.line(f"seed {row.seed}: {event_line(event, self._record)}")

    def note(self, text: str, seed: int | None = None) -> None:
        self._out.line(noted(text, seed))

    def draw(self, rows: Sequence[Row]) -> None:
        """A log has no place for what will have changed in a second."""

    def ended(self, record: StudyRecord) -> None:
        for line in result_lines(record):
            self._out.line(line)

    def close(self) -> None:
        """There is nothing to put away."""


class StudyJson:
    """JSON objects, one a line: those of the runs with ``seed`` and ``run`` added, and the study's own, ``study``."""

    def __init__(self, out: SafeStream, record: StudyRecord, quiet: bool) -> None:
        self._out, self._record, self._quiet = out, record, quiet

    def started(self, about: Mapping[str, str]) -> None:
        if not self._quiet:
            seeds = [one.seed for one in self._record.entries]
            self._emit({"event": "study", "run": self._record.run, "state": self._record.state, "seeds": seeds, **about})

    def event(self, row: Row, event: Mapping[str, Any]) -> None:
        if event["event"] == "summary" or not self._quiet:
            self._out.line(json_line({**event, "seed": row.seed}))

    def note(self, text: str, seed: int | None = None) -> None:
        self._emit({"event": "note", "text": printable(text, 1000), "seed": seed})

    def draw(self, rows: Sequence[Row]) -> None:
        """A program has heard all of it."""

    def ended(self, record: StudyRecord) -> None:
        self._emit({"event": "study", **record.told()})

    def close(self) -> None:
        """There is nothing to put away."""

    def _emit(self, event: Mapping[str, Any]) -> None:
        self._out.line(json.dumps(event, allow_nan=False))


def chosen_view(out: SafeStream, record: StudyRecord, *, quiet: bool, json_lines: bool) -> StudyView:
    """The view that fits the flags and the stream."""
    if json_lines:
        return StudyJson(out, record, quiet)
    if not quiet and out.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
        from master.study.table import StudyTable  # rich takes a moment to import, and logs need none of it

        return StudyTable(out, record)
    return StudyLog(out, record, quiet)


# --- words


def started_lines(record: StudyRecord, about: Mapping[str, str]) -> list[str]:
    """What is run, where it all is, and how to watch and join: commands stand whole on their lines."""
    config = record.config
    what = f"{config.strategy} with a {config.policy_name} policy, population {config.population}"
    width = max([8, *(len(name) for name in about)]) + 2
    head = f"study {record.run}: {printable(config.task)}, {what}, {counted(len(record.entries), 'seed')}"
    return [head, *(f"  {name:<{width}}{printable(text, 4096)}" for name, text in about.items())]


def event_line(event: Mapping[str, Value], record: StudyRecord) -> str:
    """One generation of one run on one line, for a log."""
    config, evaluated = record.config, evaluation(event)
    parts = [
        f"generation {progress_of(event.get('generation'), config.generations)}",
        f"steps {progress_of(event.get('env_steps'), config.max_steps)}",
        f"return {score(event.get('return_mean'))}" if finite(event.get("return_mean")) is not None else "",
        f"eval {evaluated}" if evaluated else "",
        f"{whole(event.get('steps_per_second'))} steps/s",
        f"{whole(event.get('workers'))} {'worker' if event.get('workers') == 1 else 'workers'}",
    ]
    return " | ".join(part for part in parts if part)


def noted(text: str, seed: int | None) -> str:
    return printable(text, 1000) if seed is None else f"seed {seed}: {printable(text, 1000)}"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def result_lines(record: StudyRecord) -> list[str]:
    """The end of a study: each seed, then the figures over them, and over how many of all they are."""
    figures, total = record.figures(), len(record.entries)
    width = max(len(str(one.seed)) for one in record.entries)
    lines = [f"study {record.run} {record.state}: {sum(one.state == FINISHED for one in record.entries)} of {counted(total, 'run')} finished"]
    lines += [f"  seed {one.seed:<{width}}  {outcome(one)}" for one in record.entries]
    if not figures.count:
        return [*lines, "  no run has a final evaluation, so there is no figure to quote"]
    over = counted(total, "run") if figures.count == total else f"{figures.count} of {counted(total, 'run')}: the others are missing, not counted as 0"
    lines += [
        f"  final evaluations of {over}",
        f"  {'IQM':<8}{score(figures.iqm)}{interval_told(figures.iqm_interval)}",
        f"  {'mean':<8}{score(figures.mean)}{interval_told(figures.mean_interval)}",
        f"  {'median':<8}{score(figures.median)}",
        f"  {'worst':<8}{score(figures.worst)}",
    ]
    if figures.iqm_interval is None:
        lines.append("  no interval: fewer than 3 runs say nothing of how others would vary")
    if record.target is not None:
        lines.append(f"  {'target':<8}{score(record.target)} reached by {record.reached()} of {counted(total, 'run')}")
    return lines


def interval_told(interval: Interval | None) -> str:
    return "" if interval is None else f", 95 % interval {score(interval[0])} to {score(interval[1])}"


def outcome(entry: Entry) -> str:
    """How one run ended, in a few words."""
    summary = entry.summary or {}
    if entry.state == FAILED:
        return f"failed with exit code {entry.code}{': ' + printable(entry.why) if entry.why else ''}"
    if entry.state != FINISHED:
        at = "" if finite(summary.get("generation")) is None else f" at generation {whole(summary['generation'])}"
        return f"{entry.state}{at}, no final evaluation" if entry.begun else "not begun"
    steps = f"{compact(summary.get('env_steps'))} steps"
    if entry.evaluation is None:
        return f"finished after {steps} without a final evaluation"
    return f"{spread(entry.evaluation, summary.get('eval_std'))}, min {score(summary.get('eval_min'))}, after {steps}"
