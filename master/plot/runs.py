"""Runs as a plot needs them: curves from metrics.jsonl, read line by line, and what the runs have in common."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import UsageError
from es_queue.private_folder import regular
from master.report import METRICS
from master.status.folders import read_settings
from master.status.history import objects_in
from master.study.record import FILE as STUDY
from master.wording import LARGEST_DRAWN, drawable, finite, printable

Floats = NDArray[np.float64]

#: What a curve can be drawn over: a record's field, and how the axis is called.
AXES = {"steps": ("env_steps", "environment steps"), "time": ("seconds", "wall-clock seconds"), "generations": ("generation", "generations"), "episodes": ("episodes", "episodes")}
#: A line of metrics.jsonl has about 1,200 bytes; no honest one has so many.
LONGEST_LINE = 2**16
MOST_LINES = 2_000_000
#: Neighbouring records become one when there are so many; each keeps so many figures at most.
MOST_RECORDS = 50_000
MOST_FIGURES = 100
#: What may differ between runs of one group: it says nothing of how they learn.
ASIDE = ("seed", "run", "workers", "block")


@dataclass(frozen=True)
class RunCurves:
    """One run: its folder, its settings, and its records in the order of generations, each
    generation once.

    left_out: how many figures of its metrics are too large to be drawn, or not finite; the records
    do not have them.
    """

    folder: Path
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    left_out: int = 0

    @property
    def seed(self) -> str:
        return printable(self.config.get("seed", "?"), 20)

    @property
    def task(self) -> str:
        """The environment or the objective."""
        return printable(self.config.get("objective") or self.config.get("env") or "?", 60)

    @cached_property
    def group(self) -> str:
        """Equal for runs that differ by their seeds alone."""
        return json.dumps({name: value for name, value in sorted(self.config.items()) if name not in ASIDE}, sort_keys=True, default=str)

    def curve(self, name: str, axis: str) -> tuple[Floats, Floats]:
        """(x, y) float64 [n] of the generations that have both, x ascending."""
        pairs = [(finite(one.get(AXES[axis][0])), finite(one.get(name))) for one in self.records]
        found = np.array([pair for pair in pairs if None not in pair], np.float64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


def read_runs(paths: Sequence[Path]) -> list[RunCurves]:
    """Every run that the paths name: folders of runs, of studies (``--seeds``), or of several of both.

    Raises UsageError where one of them holds none.
    """
    found: dict[Path, RunCurves] = {}
    for path in paths:
        own = {folder.resolve(): read_run(folder) for folder in run_folders(path)}
        if not own:
            raise UsageError(f"{path} holds no run: give the folder of a run (with {METRICS} in it), of a study, or one that has such folders")
        found |= own
    return list(found.values())


def run_folders(path: Path) -> Iterator[Path]:
    """The folder itself, or those of runs one or two levels below it."""
    if (path / METRICS).is_file():
        yield path
        return
    patterns = (f"*/{METRICS}", f"*/*/{METRICS}") if not (path / STUDY).is_file() else (f"**/{METRICS}",)
    yield from sorted({file.parent for pattern in patterns for file in path.glob(pattern) if file.is_file()})


def read_run(folder: Path) -> RunCurves:
    """The run of a folder. A generation that stands there twice (a resumed run) counts as it came last."""
    records, left_out = Records(), 0
    for told in lines_of(folder / METRICS):
        left_out += sum(map(is_too_large, told.values()))
        records.add(told)
    return RunCurves(folder, read_settings(folder / "config.json"), records.kept, left_out)


class Records:
    """The figures of a run's generations, in their order; of many generations each record stands for several.

    kept: the newest figures of ``each`` generations, so that a rare evaluation is among them
    """

    def __init__(self) -> None:
        self.kept: list[dict[str, float]] = []
        self._each, self._open = 1, 0

    def add(self, told: Mapping[str, Any]) -> None:
        """A generation, if it names one; those that it repeats are forgotten."""
        figures = ((name, drawable(value)) for name, value in told.items())
        one = dict(islice(((sys.intern(name), value) for name, value in figures if value is not None), MOST_FIGURES))
        if "generation" not in one:
            return
        while self.kept and self.kept[-1]["generation"] >= one["generation"]:
            self.kept.pop()
            self._open = self._each
        if self._open < self._each and self.kept:
            self.kept[-1] |= one
            self._open += 1
            return
        if len(self.kept) >= MOST_RECORDS:
            self.kept = [first | second for first, second in pairs_of(self.kept)]
            self._each *= 2
        self.kept.append(one)
        self._open = 1


def pairs_of(records: Sequence[dict[str, float]]) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Neighbours, two and two; their count is even."""
    return zip(records[::2], records[1::2], strict=True)


def is_too_large(value: object) -> bool:
    """Whether a value is a number, or a text of one, that cannot be drawn: beyond LARGEST_DRAWN, or
    not finite."""
    if isinstance(value, str):
        return finite(value) is not None and drawable(value) is None
    return isinstance(value, (int, float)) and not -LARGEST_DRAWN <= value <= LARGEST_DRAWN


def lines_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a file of lines; what is none is passed over. Raises UsageError for a file that cannot be read."""
    try:
        with open(path, "rb", opener=regular) as file:
            yield from objects_in(islice(iter(partial(file.readline, LONGEST_LINE), b""), MOST_LINES))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
