"""Learning curves of one run for a page: all generations, thinned so that they stay few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from es_queue.private_folder import regular
from es_queue.protocol.keys import RunKeys
from master.status.history import History, entry_of, objects_in, readable
from master.status.observe import Server, text
from master.wording import drawable, finite

#: Neighbouring points are averaged when there are so many: a screen has no more columns.
MOST_POINTS = 800
#: Entries that one look reads: a long history is there after a few looks.
ENTRIES_A_LOOK = 4000
PIECE = 500
#: A line of metrics.jsonl has about 1,200 bytes; no honest one has so many.
LONGEST_LINE = 2**16
MOST_LINES = 500_000

#: Where a point stands, whichever axis is chosen; then its figures, of which the first must be there.
PLACE = ("generation", "env_steps", "seconds")
TRAINING = ("return_mean", "return_std", "return_max")
EVALUATION = ("eval_mean", "eval_std", "eval_min")

Row = tuple[float | None, ...]


class Thinned:
    """Rows of figures in the order of generations, at most ``most`` of them; each stands for ``each`` generations."""

    def __init__(self, figures: Sequence[str], most: int = MOST_POINTS) -> None:
        self.names = (*PLACE, *figures)
        self.each = 1
        self._most, self._rows, self._open = most, list[Row](), list[Row]()

    def add(self, record: Mapping[str, Any]) -> None:
        """A generation, where it has such a figure; those that it repeats are forgotten."""
        row = tuple(finite(record.get(name)) for name in self.names)
        if row[0] is None or row[len(PLACE)] is None:
            return
        for rows in (self._rows, self._open):
            while rows and (rows[-1][0] or 0.0) >= row[0]:
                rows.pop()
        self._open.append(row)
        if len(self._open) >= self.each:
            self._rows.append(averaged(self._open))
            self._open.clear()
        if len(self._rows) >= self._most:
            self._rows = [averaged(self._rows[start : start + 2]) for start in range(0, len(self._rows), 2)]
            self.each *= 2

    def to_json(self) -> dict[str, Any]:
        """Columns by name, six digits each; ``each`` says how many generations a point stands for."""
        rows = [*self._rows, *([averaged(self._open)] if self._open else [])]
        return {"each": self.each, **{name: [rounded(row[place]) for row in rows] for place, name in enumerate(self.names)}}


def averaged(rows: Sequence[Row]) -> Row:
    """One row for several: where the last one stands, with the means of the figures."""
    figures = (mean_of([row[place] for row in rows]) for place in range(len(PLACE), len(rows[0])))
    return (*rows[-1][: len(PLACE)], *figures)


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


def rounded(value: float | None) -> float | None:
    """Six digits; None for what is nobody's honest figure, which no axis could show."""
    shown = drawable(value)
    return None if shown is None else float(f"{shown:.6g}")


class Curves:
    """A run's training returns and evaluations; ``follow`` and ``read_file`` take in what is new since the last time."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.history = History()
        self.training, self.evaluation = Thinned(TRAINING), Thinned(EVALUATION)
        self._last, self._stamp = "", (0, 0)

    def follow(self, server: Server, run: str) -> None:
        """Read what is new of the run's stream, oldest first; one that is too large for ours is left alone."""
        key = RunKeys(run).history
        if not readable(server, key):
            return
        for _ in range(ENTRIES_A_LOOK // PIECE):
            (piece,) = server.ask([("xrange", key, f"({self._last}" if self._last else "-", "+", PIECE)])
            if piece:
                self._last = text(piece[-1][0])
                self._add([entry_of(fields) for _, fields in piece])
            if len(piece or ()) < PIECE:
                break

    def read_file(self, metrics: Path) -> None:
        """Take in a metrics.jsonl, from its beginning when it has changed."""
        try:
            about = metrics.stat()
        except OSError:
            return
        if self._stamp == (about.st_mtime_ns, about.st_size):
            return
        self._forget()
        self._stamp = (about.st_mtime_ns, about.st_size)
        self._add(lines_of(metrics))

    def _add(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self.history.add([record])
            self.training.add(record)
            self.evaluation.add(record)

    def to_json(self) -> dict[str, Any]:
        return {"training": self.training.to_json(), "evaluation": self.evaluation.to_json()}


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines, as far as it can be read."""
    try:
        with open(path, "rb", opener=regular) as file:
            yield from objects_in(islice(iter(partial(file.readline, LONGEST_LINE), b""), MOST_LINES))
    except OSError:
        return
