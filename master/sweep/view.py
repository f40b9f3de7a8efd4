"""Shows a study as log lines or JSON lines; ``master.sweep.table`` has the live table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from es_queue.config.scaling import scaled
from es_queue.numerics.aggregates import Interval
from es_queue.security.sanitize import sanitize
from master.display.format import (
    finite_or_none,
    format_compact,
    format_generation,
    format_mean_std,
    format_score,
    format_whole,
)
from master.display.log_view import NO_LIMIT, SafeStream, format_json_line, format_labelled
from master.sweep.record import FAILED, FINISHED, WAITING, SeedRun, SweepRecord

#: A line of a seed at most so often, evaluations apart.
LINE_SECONDS = 10.0
ROW_FIELDS = ("generation", "env_steps", "steps_per_second", "workers")
EVALUATION_FIELDS = ("eval_mean", "eval_best")


@dataclass(frozen=True)
class SeedRow:
    """One seed's state as a word, and its newest figures."""

    seed: int
    state: str = WAITING
    figures: Mapping[str, Any] = field(default_factory=dict)


def shown_figures(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an evaluation only if there was one."""
    is_evaluated = finite_or_none(generation.get("eval_mean")) is not None
    names = (*ROW_FIELDS, *EVALUATION_FIELDS) if is_evaluated else ROW_FIELDS
    return {name: generation[name] for name in names if name in generation}


class SweepView:
    """One way to show a study; a view omits methods that it does not need.

    event: what a run's es-master has written; draw: the rows as they are now, several times per
    second
    """

    def started(self, about: Mapping[str, str]) -> None: ...
    def event(self, row: SeedRow, event: Mapping[str, Any]) -> None: ...
    def note(self, text: str, seed: int | None = None) -> None: ...
    def draw(self, rows: Sequence[SeedRow]) -> None: ...
    def ended(self, record: SweepRecord) -> None: ...
    def close(self) -> None: ...


class SweepLogView(SweepView):
    """Plain lines; ``quiet`` keeps only notes and the end."""

    def __init__(
        self,
        out: SafeStream,
        record: SweepRecord,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._record, self._quiet, self._clock = out, record, quiet, clock
        self._last_printed: dict[int, float] = {}

    def started(self, about: Mapping[str, str]) -> None:
        for line in () if self._quiet else format_start(self._record, about):
            self._out.write_line(line)

    def event(self, row: SeedRow, event: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        if event["event"] == "summary":
            ended = SeedRun(row.seed, "", str(event.get("state")), begun=True, summary=dict(event))
            self._out.write_line(
                f"seed {row.seed}: {sanitize(event.get('state'))}: {format_outcome(ended)}"
            )
        if event["event"] != "generation":
            return
        evaluated = finite_or_none(event.get("eval_mean")) is not None
        if (
            evaluated
            or self._clock() - self._last_printed.get(row.seed, -LINE_SECONDS) >= LINE_SECONDS
        ):
            self._last_printed[row.seed] = self._clock()
            self._out.write_line(
                f"seed {row.seed}: {format_generation(event, self._record.config)}"
            )

    def note(self, text: str, seed: int | None = None) -> None:
        self._out.write_line(format_note(text, seed))

    def ended(self, record: SweepRecord) -> None:
        for line in format_result(record):
            self._out.write_line(line)


class SweepJsonView(SweepView):
    """JSON objects, one per line: those of the runs with ``seed`` and ``run`` added, and the
    study's own, ``study``.
    """

    def __init__(self, out: SafeStream, record: SweepRecord, quiet: bool) -> None:
        self._out, self._record, self._quiet = out, record, quiet

    def started(self, about: Mapping[str, str]) -> None:
        if not self._quiet:
            seeds = [entry.seed for entry in self._record.entries]
            head = {"event": "study", "run": self._record.run, "state": self._record.state}
            self._write_event({**head, "seeds": seeds, **about})

    def event(self, row: SeedRow, event: Mapping[str, Any]) -> None:
        if event["event"] == "summary" or not self._quiet:
            self._out.write_line(format_json_line({**event, "seed": row.seed}))

    def note(self, text: str, seed: int | None = None) -> None:
        self._write_event({"event": "note", "text": sanitize(text, 1000), "seed": seed})

    def ended(self, record: SweepRecord) -> None:
        self._write_event({"event": "study", **record.to_dict()})

    def _write_event(self, event: Mapping[str, Any]) -> None:
        self._out.write_line(json.dumps(event, allow_nan=False))


# --- words


def format_start(
    record: SweepRecord, about: Mapping[str, str], columns: int = NO_LIMIT
) -> list[str]:
    config = record.config
    population = scaled(config).population
    what = f"{config.strategy} with a {config.policy_name} policy, population {population}"
    description = f"{sanitize(config.task)}, {what}, {format_count(len(record.entries), 'seed')}"
    return format_labelled(f"study {record.run}", description, about, columns)


def format_note(text: str, seed: int | None) -> str:
    return sanitize(text, 1000) if seed is None else f"seed {seed}: {sanitize(text, 1000)}"


def format_count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def format_result(record: SweepRecord) -> list[str]:
    """Each seed, then figures over them, and over how many."""
    figures, total = record.figures(), len(record.entries)
    width = max(len(str(entry.seed)) for entry in record.entries)
    lines = [
        f"study {record.run} {record.state}: "
        f"{sum(entry.state == FINISHED for entry in record.entries)} of "
        f"{format_count(total, 'run')} finished"
    ]
    lines += [f"  seed {entry.seed:<{width}}  {format_outcome(entry)}" for entry in record.entries]
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


def format_outcome(entry: SeedRun) -> str:
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
