"""A run's curve: figures of its generations from Redis or metrics.jsonl, in order and thinned."""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from es_queue.files import open_file
from es_queue.protocol.keys import RunKeys
from es_queue.text import to_text
from master.status.figures import drawable_or_none, finite_or_none
from master.storage.metrics_files import LONGEST_LINE, parse_json_lines

#: A look reads so many pieces of so many generations: the whole history, of which Redis keeps ten
#: thousand. Of a long curve, neighbours are averaged: a screen has no more columns.
MOST_PIECES, PIECE, MOST_LINES, MOST_POINTS = 24, 500, 500_000, 800
#: So many newest generations say what is usual; so many figures of a generation are kept.
MOST_RECENT, LONGEST_FIGURE, MOST_FIGURES = 50, 200, 100
#: A single look samples a history of more generations: so many pieces of so many.
MOST_WHOLE, SAMPLES, SAMPLE = 2000, 40, 25

Ask = Callable[[list[Any]], list[Any]]
#: The figures of one generation, or of merged ones.
Row = dict[str, float]
#: The position of a point on each axis.
AXES = ("generation", "env_steps", "seconds", "episodes")
FIGURE_NAME = re.compile(r"\w{1,60}", re.ASCII)


class Series:
    """Rows of figures by generation, in order. Beyond ``most``, neighbours are merged: the means of
    their figures, at the last one's position; ``each``: how many generations a row then represents.

    figures: those that are kept, of which the first must be known; none: all that ``parse`` takes
    """

    def __init__(
        self,
        *figures: str,
        most: int = MOST_POINTS,
        parse: Callable[[object], float | None] = finite_or_none,
    ) -> None:
        self.figures, self._most, self._parse = figures, most, parse
        self._rows, self._open, self.each = list[Row](), list[Row](), 1

    def add(self, record: Mapping[str, Any]) -> None:
        """A generation. It replaces those that it repeats, of a resumed run."""
        names = (*AXES, *self.figures) if self.figures else islice(record, MOST_FIGURES)
        read = ((sys.intern(name), self._parse(record.get(name))) for name in names)
        row = {name: value for name, value in read if value is not None}
        if "generation" not in row or not row.keys() >= {*self.figures[:1]}:
            return
        for rows in (self._rows, self._open):
            while rows and rows[-1]["generation"] >= row["generation"]:
                rows.pop()
        self._open.append(row)
        if len(self._open) >= self.each:
            self._rows.append(merge(self._open))
            self._open.clear()
        if len(self._rows) >= self._most:
            self._rows = [merge(self._rows[at : at + 2]) for at in range(0, len(self._rows), 2)]
            self.each *= 2

    @property
    def rows(self) -> list[Row]:
        return [*self._rows, *([merge(self._open)] if self._open else [])]

    @property
    def count(self) -> int:
        """Number of generations."""
        return len(self._rows) * self.each + len(self._open)

    def points(self, axis: str, figure: str = "") -> list[tuple[float, float]]:
        """A figure, else the first one, over an axis, where both are known."""
        figure = figure or self.figures[0]
        return [(row[axis], row[figure]) for row in self.rows if axis in row and figure in row]

    def to_json(self) -> dict[str, Any]:
        """Columns by name, six digits each; None for a figure that no axis can show."""
        rows = self.rows

        def column(name: str) -> list[float | None]:
            values = (drawable_or_none(row.get(name)) for row in rows)
            return [None if value is None else float(f"{value:.6g}") for value in values]

        return {"each": self.each, **{name: column(name) for name in (*AXES[:3], *self.figures)}}


def merge(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    merged = {name: rows[-1][name] for name in AXES if name in rows[-1]}
    for name in dict.fromkeys(name for row in rows for name in row if name not in AXES):
        known = [row[name] for row in rows if name in row]
        # Divided first: the sum of the largest figures is infinite.
        merged[name] = sum(one / len(known) for one in known)
    return merged


class Curve:
    """A run's returns and evaluations, from its history in Redis or its metrics.jsonl; it reads
    only what is new.

    is_brief: read only a sample of a long history, for a single look; is_sample: it was one
    figure: another one that is read too; recorded: the names of all in the newest generation
    """

    def __init__(self, *, is_brief: bool = False, figure: str = "") -> None:
        self._file: object = None
        self._is_brief, self.is_sample = is_brief, False
        self._figure = figure
        self._clear()

    def _clear(self) -> None:
        self.training = Series("return_mean", "return_std", "return_max")
        self.evaluation = Series("eval_mean", "eval_std", "eval_min")
        self._all = [self.training, self.evaluation]
        self._all += [Series(self._figure)] if self._figure else []
        self._waits: deque[float] = deque(maxlen=MOST_RECENT)
        self._last, self._offset = "", 0
        self._newest: Mapping[str, Any] = {}

    @property
    def recorded(self) -> list[str]:
        """The names of the numbers in the newest generation."""
        return [
            name
            for name, value in self._newest.items()
            if FIGURE_NAME.fullmatch(name) and finite_or_none(value) is not None
        ]

    @property
    def usual_wait(self) -> float | None:
        """Median seconds that the newest generations waited; None before the first."""
        return statistics.median(self._waits) if self._waits else None

    def read_redis(self, ask: Ask, run: str) -> None:
        """ask: of a RedisReader"""
        history = RunKeys(run).history
        if self._is_brief and not self._last:
            self._read_sample(ask, history)
        for _ in range(MOST_PIECES):
            least = f"({self._last}" if self._last else "-"
            (piece,) = ask([("xrange", history, least, "+", PIECE)])
            self._add_entries(piece or ())
            if len(piece or ()) < PIECE:
                break

    def _read_sample(self, ask: Ask, history: str) -> None:
        """Of a long history, samples at equal distances in time, and the newest generations."""
        questions = [("xlen", history), ("xrange", history, "-", "+", 1)]
        length, first, newest = ask([*questions, ("xrevrange", history, "+", "-", PIECE)])
        if not first or not newest or length <= MOST_WHOLE:
            return
        self.is_sample = True
        start, end = (int(entry.partition(b"-")[0]) for entry, _ in (first[0], newest[-1]))
        times = (start + (end - start) * part // SAMPLES for part in range(SAMPLES))
        pieces = ask([("xrange", history, str(time), newest[-1][0], SAMPLE) for time in times])
        found = {entry: values for piece in pieces for entry, values in piece or ()}
        self._add_entries(
            sorted(found.items(), key=lambda one: [int(part) for part in one[0].split(b"-")])
        )
        self._add_entries(reversed(newest))

    def _add_entries(self, entries: Iterable[tuple[bytes, dict[bytes, bytes] | None]]) -> None:
        names = {*AXES, *(name for one in self._all for name in one.figures), "seconds_wait"}
        keys = [(name, name.encode()) for name in names]
        newest: Mapping[bytes, bytes] | None = None
        for entry, values in entries:
            self._last = to_text(entry)
            found = ((name, (values or {}).get(key)) for name, key in keys)
            self._add({name: to_text(v) for name, v in found if v and len(v) <= LONGEST_FIGURE})
            newest = values
        if newest:
            self._newest = {to_text(name): to_text(value) for name, value in newest.items()}

    def read_file(self, metrics: Path) -> None:
        """From its beginning if it is another file."""
        with suppress(OSError), open_file(metrics) as file:
            about = os.fstat(file.fileno())
            if self._file != (about.st_dev, about.st_ino) or about.st_size < self._offset:
                self._clear()
                self._file = about.st_dev, about.st_ino
            file.seek(self._offset)
            for record in parse_json_lines(islice(whole_lines(file), MOST_LINES)):
                self._add(record)
                self._newest = record
            self._offset = file.tell()

    def _add(self, record: Mapping[str, Any]) -> None:
        for one in self._all:
            one.add(record)
        wait = finite_or_none(record.get("seconds_wait"))
        if wait is not None and wait >= 0:
            self._waits.append(wait)

    def to_json(self) -> dict[str, Any]:
        names = ("training", "evaluation", "figure")
        return {name: one.to_json() for name, one in zip(names, self._all, strict=False)}


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, or pieces of a line that is too long. A last line that is still being written is left
    for the next look.
    """
    while line := file.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE and not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield line


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does; None if there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def modification_time(path: Path) -> float | None:
    stamp = file_stamp(path)
    return None if stamp is None else stamp[2] / 1e9
