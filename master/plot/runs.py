"""Reads runs for plots: curves from metrics.jsonl, and the settings that runs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from es_queue.config.run_config import AUTO
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles
from es_queue.security.sanitize import sanitize
from es_queue.util.run_folder import STUDY_FILE, existing_folder, refuse_links
from master.display.format import LARGEST_DRAWN, drawable_or_none, finite_or_none
from master.status.run_folders import read_settings
from master.storage.metrics_files import METRICS, read_json_lines

#: The horizontal axes: a record's field, and the label.
AXES = {
    "steps": ("env_steps", "environment steps"),
    "time": ("seconds", "wall-clock seconds"),
    "generations": ("generation", "generations"),
    "episodes": ("episodes", "episodes"),
}
MOST_LINES = 2_000_000
#: With more records, neighbours are merged; each keeps at most this many figures.
MOST_RECORDS = 50_000
MOST_FIGURES = 100
#: Runs of one group may differ in these, which do not affect learning.
IGNORED_SETTINGS = ("seed", "run", "workers", "block")


@dataclass(frozen=True)
class RunCurves:
    """One run: its folder, its settings, and its records by generation, without repetition.

    left_out:  number of figures in its metrics that are too large to draw, or not finite; the
               records lack them
    is_shared: whether its study has other runs, with which it shared the workers
    """

    folder: Path
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    left_out: int = 0
    is_shared: bool = False

    @property
    def seed(self) -> str:
        return sanitize(self.config.get("seed", "?"), 20)

    @property
    def task(self) -> str:
        return sanitize(self.config.get("objective") or self.config.get("env") or "?", 60)

    @property
    def target(self) -> object:
        """The return that ends the run; for auto, the threshold of an environment that an installed
        package registers without further imports.
        """
        target = self.config.get("target_reward")
        if target != AUTO or self.config.get("objective"):
            return target
        specification = gymnasium.registry.get(str(self.config.get("env")))
        return specification.reward_threshold if specification else None

    @cached_property
    def group(self) -> str:
        """Equal for runs that differ only by seed."""
        return json.dumps(
            {
                name: value
                for name, value in sorted(self.config.items())
                if name not in IGNORED_SETTINGS
            },
            sort_keys=True,
            default=str,
        )

    def curve(self, name: str, axis: str) -> tuple[Doubles, Doubles]:
        """(x, y) float64 [n] of the generations that have both, x ascending."""
        pairs = [
            (finite_or_none(record.get(AXES[axis][0])), finite_or_none(record.get(name)))
            for record in self.records
        ]
        points = np.array([pair for pair in pairs if None not in pair], np.float64).reshape(-1, 2)
        return points[:, 0], points[:, 1]


def read_runs(paths: Sequence[Path], runs_dir: str | None = None) -> list[RunCurves]:
    """All runs that the words name: runs, studies (``--seeds``), or folders of them.

    Raises NoRunError for a word that names none, UsageError for a folder without one.
    """
    runs: dict[Path, RunCurves] = {}
    for path in paths:
        place = existing_folder(path, runs_dir)
        found_here = {folder.resolve(): read_run(folder) for folder in find_run_folders(place)}
        if not found_here:
            raise UsageError(
                f"{place} holds no run: give the folder of a run (with {METRICS} in it), of a "
                "study, or a folder that contains some"
            )
        runs |= found_here
    return list(runs.values())


def find_run_folders(path: Path) -> Iterator[Path]:
    if (path / METRICS).is_file():
        yield path
        return
    patterns = (
        (f"*/{METRICS}", f"*/*/{METRICS}")
        if not (path / STUDY_FILE).is_file()
        else (f"**/{METRICS}",)
    )
    yield from sorted(
        {file.parent for pattern in patterns for file in path.glob(pattern) if file.is_file()}
    )


def read_run(folder: Path) -> RunCurves:
    """The run of a folder. Of a repeated generation (a resumed run), the last counts. Raises
    UsageError for an unreadable file, RunFolderError for a folder with links.
    """
    refuse_links(folder)
    records, left_out = Records(), 0
    try:
        for line in read_json_lines(folder / METRICS, MOST_LINES):
            left_out += sum(map(is_too_large, line.values()))
            records.add(line)
    except OSError as error:
        raise UsageError(f"{folder / METRICS} cannot be read: {error.strerror}") from None
    settings = read_settings(folder / "config.json")
    return RunCurves(folder, settings, records.kept, left_out, shares_workers(folder))


def shares_workers(folder: Path) -> bool:
    study = folder.resolve().parent
    return (study / STUDY_FILE).is_file() and sum(1 for _ in study.glob(f"*/{METRICS}")) > 1


class Records:
    """The figures of a run's generations, in order; in a long run, each record represents several.

    kept: the newest figures of ``each`` generations, so that a rare evaluation is among them
    """

    def __init__(self) -> None:
        self.kept: list[dict[str, float]] = []
        self._each, self._open = 1, 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a generation, if the line has one, and remove those that it repeats."""
        figures = ((name, drawable_or_none(value)) for name, value in line.items())
        record = dict(
            islice(
                ((sys.intern(name), value) for name, value in figures if value is not None),
                MOST_FIGURES,
            )
        )
        if "generation" not in record:
            return
        while self.kept and self.kept[-1]["generation"] >= record["generation"]:
            self.kept.pop()
            self._open = self._each
        if self._open < self._each and self.kept:
            self.kept[-1] |= record
            self._open += 1
            return
        if len(self.kept) >= MOST_RECORDS:
            pairs = zip(self.kept[::2], self.kept[1::2], strict=True)
            self.kept = [first | second for first, second in pairs]
            self._each *= 2
        self.kept.append(record)
        self._open = 1


def is_too_large(value: object) -> bool:
    """Whether a value, or the number in a text, cannot be drawn."""
    if isinstance(value, str):
        return finite_or_none(value) is not None and drawable_or_none(value) is None
    return isinstance(value, (int, float)) and not -LARGEST_DRAWN <= value <= LARGEST_DRAWN
