"""Learning curves of one run for the page: all generations, thinned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from es_queue.protocol.keys import RunKeys
from master.display.format import drawable_or_none, finite_or_none
from master.status.history import History, is_readable, parse_entry
from master.status.redis_reader import RedisReader
from master.status.values import read_json_lines, to_text

#: Neighbouring points are averaged when there are so many: a screen has no more columns.
MOST_POINTS = 800
#: Entries that one look reads: a long history is there after a few looks.
ENTRIES_PER_UPDATE = 4000
READ_COUNT = 500
MOST_LINES = 500_000

#: Where a point stands, whichever axis is chosen; then its figures, of which the first must be
#: there.
AXIS_FIELDS = ("generation", "env_steps", "seconds")
TRAINING_FIELDS = ("return_mean", "return_std", "return_max")
EVALUATION_FIELDS = ("eval_mean", "eval_std", "eval_min")

PointRow = tuple[float | None, ...]


class DecimatedSeries:
    """Rows of figures in the order of generations, at most ``most`` of them; each stands for
    ``generations_per_point`` generations.
    """

    def __init__(self, figures: Sequence[str], most: int = MOST_POINTS) -> None:
        self.names = (*AXIS_FIELDS, *figures)
        self.generations_per_point = 1
        self._most, self._rows, self._partial_rows = most, list[PointRow](), list[PointRow]()

    def add(self, record: Mapping[str, Any]) -> None:
        """A generation, where it has such a figure; those that it repeats are forgotten."""
        row = tuple(finite_or_none(record.get(name)) for name in self.names)
        if row[0] is None or row[len(AXIS_FIELDS)] is None:
            return
        for rows in (self._rows, self._partial_rows):
            while rows and (rows[-1][0] or 0.0) >= row[0]:
                rows.pop()
        self._partial_rows.append(row)
        if len(self._partial_rows) >= self.generations_per_point:
            self._rows.append(average_rows(self._partial_rows))
            self._partial_rows.clear()
        if len(self._rows) >= self._most:
            self._rows = [
                average_rows(self._rows[start : start + 2])
                for start in range(0, len(self._rows), 2)
            ]
            self.generations_per_point *= 2

    def to_json(self) -> dict[str, Any]:
        """Columns by name, six digits each; ``generations_per_point`` says how many generations a
        point stands for.
        """
        rows = [*self._rows, *([average_rows(self._partial_rows)] if self._partial_rows else [])]
        return {
            "each": self.generations_per_point,
            **{
                name: [round_or_none(row[place]) for row in rows]
                for place, name in enumerate(self.names)
            },
        }


def average_rows(rows: Sequence[PointRow]) -> PointRow:
    """One row for several: where the last one stands, with the means of the figures."""
    figures = (
        mean_or_none([row[place] for row in rows])
        for place in range(len(AXIS_FIELDS), len(rows[0]))
    )
    return (*rows[-1][: len(AXIS_FIELDS)], *figures)


def mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def round_or_none(value: float | None) -> float | None:
    """Six digits; None for what is nobody's honest figure, which no axis could show."""
    shown = drawable_or_none(value)
    return None if shown is None else float(f"{shown:.6g}")


class LearningCurves:
    """A run's training returns and evaluations; ``update`` and ``read_file`` take in what is new
    since the last time.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.history = History()
        self.training, self.evaluation = (
            DecimatedSeries(TRAINING_FIELDS),
            DecimatedSeries(EVALUATION_FIELDS),
        )
        self._last, self._stamp = "", (0, 0)

    def update(self, server: RedisReader, run: str) -> None:
        """Read what is new of the run's stream, oldest first; one that is too large for ours is
        left alone.
        """
        key = RunKeys(run).history
        if not is_readable(server, key):
            return
        for _ in range(ENTRIES_PER_UPDATE // READ_COUNT):
            (piece,) = server.ask(
                [("xrange", key, f"({self._last}" if self._last else "-", "+", READ_COUNT)]
            )
            if piece:
                self._last = to_text(piece[-1][0])
                self._add_records([parse_entry(fields) for _, fields in piece])
            if len(piece or ()) < READ_COUNT:
                break

    def read_file(self, metrics: Path) -> None:
        """Take in a metrics.jsonl, from its beginning when it has changed."""
        try:
            about = metrics.stat()
        except OSError:
            return
        if self._stamp == (about.st_mtime_ns, about.st_size):
            return
        self._reset()
        self._stamp = (about.st_mtime_ns, about.st_size)
        with suppress(OSError):
            self._add_records(read_json_lines(metrics, MOST_LINES))

    def _add_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self.history.add_records([record])
            self.training.add(record)
            self.evaluation.add(record)

    def to_json(self) -> dict[str, Any]:
        return {"training": self.training.to_json(), "evaluation": self.evaluation.to_json()}
