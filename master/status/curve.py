"""A run's curve: figures of its generations from Redis or metrics.jsonl, in order and thinned."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from es_queue.protocol.keys import RunKeys
from es_queue.text import to_text
from master.status.figures import drawable_or_none, finite_or_none
from master.storage.metrics_files import read_json_lines

#: A look reads so many pieces of so many generations: the whole history, of which Redis keeps ten
#: thousand. Of a long curve, neighbours are averaged: a screen has no more columns.
MOST_PIECES, PIECE, MOST_LINES, MOST_POINTS = 24, 500, 500_000, 800
#: So many newest generations say what is usual.
MOST_RECENT, LONGEST_FIGURE = 50, 200

T = TypeVar("T")
Row = tuple[float | None, ...]
#: The position of a point on each axis; then its figures, of which the first must be known.
AXES = ("generation", "env_steps", "seconds")


class Thinned(Generic[T]):
    """What there is of each generation, in order. Beyond ``most``, neighbours are merged; ``each``:
    how many generations an item then represents. number: the generation of an item
    """

    def __init__(
        self, most: int, number: Callable[[T], float], merge: Callable[[Sequence[T]], T]
    ) -> None:
        self._most, self._number, self._merge = most, number, merge
        self._items, self._open, self.each = list[T](), list[T](), 1

    def add(self, item: T) -> None:
        """It replaces the generations that it repeats: those of a resumed run."""
        for items in (self._items, self._open):
            while items and self._number(items[-1]) >= self._number(item):
                items.pop()
        self._open.append(item)
        if len(self._open) >= self.each:
            self._items.append(self._merge(self._open))
            self._open.clear()
        if len(self._items) >= self._most:
            pairs = (self._items[at : at + 2] for at in range(0, len(self._items), 2))
            self._items, self.each = list(map(self._merge, pairs)), 2 * self.each

    @property
    def items(self) -> list[T]:
        return [*self._items, *([self._merge(self._open)] if self._open else [])]

    @property
    def count(self) -> int:
        """Number of generations."""
        return len(self._items) * self.each + len(self._open)


class Series(Thinned[Row]):
    """Figures over each axis; those of merged generations are averaged."""

    def __init__(self, *names: str) -> None:
        super().__init__(MOST_POINTS, lambda row: row[0] or 0.0, average)
        self.names = (*AXES, *names)

    def add_record(self, record: Mapping[str, Any]) -> None:
        """A generation, if it has the figure."""
        row = tuple(finite_or_none(record.get(name)) for name in self.names)
        if row[0] is not None and row[len(AXES)] is not None:
            self.add(row)

    def points(self, axis: str) -> list[tuple[float, float]]:
        """The first figure over an axis; a position that is unknown is 0."""
        place = AXES.index(axis)
        return [(row[place] or 0.0, row[len(AXES)] or 0.0) for row in self.items]

    def to_json(self) -> dict[str, Any]:
        """Columns by name, six digits each; None for a figure that no axis can show."""
        columns = list(zip(*self.items, strict=True)) or [()] * len(self.names)
        return {
            "each": self.each,
            **{
                name: [
                    None if drawable_or_none(value) is None else float(f"{value:.6g}")
                    for value in column
                ]
                for name, column in zip(self.names, columns, strict=True)
            },
        }


def average(rows: Sequence[Row]) -> Row:
    """The last row's position, with the means of the figures."""
    columns = list(zip(*rows, strict=True))
    known = [[value for value in column if value is not None] for column in columns[len(AXES) :]]
    # Divided first: the sum of the largest figures is infinite.
    means = (sum(one / len(values) for one in values) if values else None for values in known)
    return (*rows[-1][: len(AXES)], *means)


class Curve:
    """A run's returns and evaluations, from its history in Redis or its metrics.jsonl; it reads
    only what is new.
    """

    def __init__(self) -> None:
        self._stamp: object = None
        self._clear()

    def _clear(self) -> None:
        self.training = Series("return_mean", "return_std", "return_max")
        self.evaluation = Series("eval_mean", "eval_std", "eval_min")
        names = (*self.training.names, *self.evaluation.names, "seconds_wait")
        self._names = {name: name.encode() for name in names}
        self._waits: deque[float] = deque(maxlen=MOST_RECENT)
        self._last = ""

    @property
    def usual_wait(self) -> float | None:
        """Median seconds that the newest generations waited; None before the first."""
        return statistics.median(self._waits) if self._waits else None

    def read_redis(self, ask: Callable[[list[Any]], list[Any]], run: str) -> None:
        """ask: of a RedisReader"""
        for _ in range(MOST_PIECES):
            least = f"({self._last}" if self._last else "-"
            (piece,) = ask([("xrange", RunKeys(run).history, least, "+", PIECE)])
            for entry, values in piece or ():
                self._last = to_text(entry)
                found = ((name, (values or {}).get(data)) for name, data in self._names.items())
                known = {name: value for name, value in found if value is not None}
                self._add(
                    {name: to_text(v) for name, v in known.items() if len(v) <= LONGEST_FIGURE}
                )
            if len(piece or ()) < PIECE:
                break

    def read_file(self, metrics: Path) -> None:
        """From its beginning if it has changed."""
        if self._stamp != (stamp := file_stamp(metrics)):
            self._clear()
            self._stamp = stamp
            with suppress(OSError):
                for record in read_json_lines(metrics, MOST_LINES):
                    self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        self.training.add_record(record)
        self.evaluation.add_record(record)
        wait = finite_or_none(record.get("seconds_wait"))
        if wait is not None and wait >= 0:
            self._waits.append(wait)

    def to_json(self) -> dict[str, Any]:
        return {"training": self.training.to_json(), "evaluation": self.evaluation.to_json()}


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
