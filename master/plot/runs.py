"""Reads runs for plots: curves from metrics.jsonl, and the settings that runs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from es_queue.config.run_config import AUTO
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles
from es_queue.run_folder import STUDY_FILE, existing_folder, refuse_links
from es_queue.text import sanitize
from master.status.figures import LARGEST_DRAWN, drawable_or_none, finite_or_none
from master.status.snapshot import Thinned, read_settings
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
    records: Sequence[Mapping[str, float]]
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
        settings = {key: self.config[key] for key in self.config if key not in IGNORED_SETTINGS}
        return json.dumps(settings, sort_keys=True, default=str)

    def curve(self, name: str, axis: str) -> tuple[Doubles, Doubles]:
        """(x, y) float64 [n] of the generations that have both, x ascending."""
        x = AXES[axis][0]
        points = [(one[x], one[name]) for one in self.records if x in one and name in one]
        columns = np.array(points, np.float64).reshape(-1, 2)
        return columns[:, 0], columns[:, 1]


def read_runs(paths: Sequence[Path], runs_dir: str | None = None) -> list[RunCurves]:
    """All runs that the words name: runs, studies (``--seeds``), or folders of them. Raises
    NoRunError for a word that names none, UsageError for a folder without one.
    """
    runs: dict[Path, RunCurves] = {}
    for path in paths:
        place = existing_folder(path, runs_dir)
        if (place / METRICS).is_file():
            folders = [place]
        else:
            is_study = (place / STUDY_FILE).is_file()
            patterns = [f"**/{METRICS}"] if is_study else [f"*/{METRICS}", f"*/*/{METRICS}"]
            files = {file for pattern in patterns for file in place.glob(pattern)}
            folders = sorted(file.parent for file in files if file.is_file())
        if not folders:
            raise UsageError(
                f"{place} holds no run: give the folder of a run (with {METRICS} in it), of a "
                "study, or a folder that contains some"
            )
        runs |= {folder.resolve(): read_run(folder) for folder in folders}
    return list(runs.values())


def read_run(folder: Path) -> RunCurves:
    """The run of a folder. Of a repeated generation (a resumed run), the last counts. Raises
    UsageError for an unreadable file, RunFolderError for a folder with links.
    """
    refuse_links(folder)
    # In a long run, a record has the newest figures of its generations, so that a rare evaluation
    # is among them.
    kept = Thinned[dict[str, float]](MOST_RECORDS, itemgetter("generation"), merge_newest)
    left_out = 0
    try:
        for line in read_json_lines(folder / METRICS, MOST_LINES):
            left_out += sum(map(is_too_large, line.values()))
            figures = ((sys.intern(name), drawable_or_none(line[name])) for name in line)
            known = ((name, value) for name, value in figures if value is not None)
            record = dict(islice(known, MOST_FIGURES))
            if "generation" in record:
                kept.add(record)
    except OSError as error:
        raise UsageError(f"{folder / METRICS} cannot be read: {error.strerror}") from None
    study = folder.resolve().parent
    is_shared = (study / STUDY_FILE).is_file() and len(list(study.glob(f"*/{METRICS}"))) > 1
    return RunCurves(folder, read_settings(folder / "config.json"), kept.items, left_out, is_shared)


def merge_newest(records: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: value for record in records for name, value in record.items()}


def is_too_large(value: object) -> bool:
    """Whether a value, or the number in a text, cannot be drawn."""
    if isinstance(value, str):
        return finite_or_none(value) is not None and drawable_or_none(value) is None
    return isinstance(value, (int, float)) and not -LARGEST_DRAWN <= value <= LARGEST_DRAWN
