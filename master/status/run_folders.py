"""Runs whose private server has ended, read from their folders, bounded and checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from es_queue.command_line import format_command
from es_queue.files import read_end, read_file
from es_queue.protocol.keys import FAILED, FINISHED, RUN_ID, RUNNING, STOPPED
from es_queue.run_folder import (
    CHECKPOINT_NAME,
    ERROR_REPORTS_FILE,
    FAILURE_FILE,
    NamedRun,
    read_stored_name,
)
from master.display.format import finite_or_none
from master.status.history import History, short
from master.status.redis_reader import (
    LONGEST_CONFIG,
    LONGEST_VALUE,
    MOST_RUNS,
    PROGRESS_FIELDS,
    RunSummary,
    Texts,
)
from master.status.values import parse_json_object
from master.storage.metrics_files import METRICS

#: A configuration has about 5 KB and a hundred names.
MOST_BYTES = 2**16
MOST_REPORT_BYTES = 4 * 2**20
MOST_NAMES = 300
MOST_ITEMS = 100
#: What a summary and a generation's record call alike, and progress too.
CONFIG_FIELDS = ("env", "strategy")
#: The files that a cached run folder was read from.
CACHED_FILES = ("config.json", "summary.json", FAILURE_FILE, METRICS, ERROR_REPORTS_FILE)


class RunFolder:
    """The folder of a run whose server does not run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_settings(folder / "config.json")
        summary = read_object(folder / "summary.json")
        self._summary = {
            name: summary[name] for name in PROGRESS_FIELDS if short(summary.get(name))
        }
        self._named_run = read_stored_name(folder)

    @property
    def run(self) -> str:
        """The stored id, else the folder's name; empty if neither is valid."""
        return self._named_run or self.folder_name

    @property
    def folder_name(self) -> str:
        """The folder's name; empty if it is no valid id."""
        return self.folder.name if RUN_ID.fullmatch(self.folder.name) else ""

    def can_be_run(self, run: str) -> bool:
        """Whether the folder can be that run's. A folder of another name can be, unless its summary
        names another run.
        """
        return bool(self.config) and run in (self._named_run or run, self._named_run)

    def summarize(self, run: str = "") -> RunSummary:
        """The run, from the folder, under the given id if any."""
        run = run or self.run
        command, word = (
            format_command("es-master"),
            NamedRun(self._named_run or run, self.folder).word,
        )
        return RunSummary(
            run,
            f"{self.folder} (its server has ended)",
            f"{command} --resume {word}",
            modification_time(self.folder / "config.json"),
            False,
            self._progress(self.history.newest),
            purge=f"{command} --purge {word}",
            is_on_disk=True,
        )

    @cached_property
    def history(self) -> History:
        history = History()
        history.read_file(self.folder / METRICS)
        return history

    @cached_property
    def report_count(self) -> int:
        """Number of the workers' reports that were kept when the run ended."""
        try:
            return read_end(self.folder / ERROR_REPORTS_FILE, MOST_REPORT_BYTES).count(b"\n")
        except OSError:
            return 0

    def _progress(self, last: Mapping[str, Any]) -> Texts:
        """As Redis would hold it: settings, the last generation's record, then the summary."""
        finished = self._summary.get("state") == FINISHED
        config = {**self.config, "env": self.config.get("env") or self.config.get("objective")}
        settings = {name: config[name] for name in CONFIG_FIELDS if name in config}
        known = {**settings, **last, **(self._summary if finished else {})}
        progress = {name: str(known[name]) for name in PROGRESS_FIELDS if short(known.get(name))}
        if "eval_mean" not in progress and self.history.evaluations:
            progress["eval_mean"] = str(self.history.evaluations[-1][1])
        if (failure := self.folder / FAILURE_FILE).is_file():
            why = read_object(failure).get("why")
            progress |= {"state": FAILED, "why": str(why) if short(why) else ""}
        else:
            progress["state"] = (
                FINISHED if finished else STOPPED if self._has_orderly_end(last) else RUNNING
            )
        updated = modification_time(self.folder / METRICS)
        return progress if updated is None else {**progress, "updated": str(updated)}

    def _has_orderly_end(self, last: Mapping[str, Any]) -> bool:
        """A master that ends in order saves the open generation, which is later than the last
        closed one; or that one again, if an error of the caller followed its record.
        """
        saved = [
            (int(match[1]), modification_time(path) or 0.0)
            for path in (self.folder / "checkpoints").glob("generation-*.npz")
            if (match := CHECKPOINT_NAME.fullmatch(path.name))
        ]
        closed = finite_or_none(last.get("generation"))
        recorded = modification_time(self.folder / METRICS) or 0.0
        return bool(saved) and (closed is None or max(saved) > (closed, recorded))


def read_object(path: Path, most: int = LONGEST_CONFIG) -> dict[str, Any]:
    """Empty for anything but a JSON object of plausible size."""
    try:
        return parse_json_object(read_file(path, most))
    except OSError:
        return {}


def read_settings(path: Path) -> dict[str, Any]:
    """The short values of a run's config.json."""
    settings = read_object(path, MOST_BYTES)
    return dict(
        islice(((name, value) for name, value in settings.items() if is_kept(value)), MOST_NAMES)
    )


def is_kept(value: object) -> bool:
    """Whether a value can be a setting: short, or a few short ones."""
    if isinstance(value, dict):
        return len(value) <= MOST_ITEMS and not any(
            isinstance(item, dict) or not is_kept(item) for item in value.values()
        )
    if isinstance(value, list):
        return len(value) <= MOST_ITEMS and all(map(is_single, value))
    return is_single(value)


def is_single(value: object) -> bool:
    return not isinstance(value, (list, dict)) and (
        not isinstance(value, str) or len(value) <= LONGEST_VALUE
    )


def modification_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def newest_folders(folders: list[Path]) -> list[RunFolder]:
    """Folders with a configuration, newest first."""
    folders = sorted(
        folders, key=lambda folder: -(modification_time(folder / "config.json") or 0.0)
    )[:MOST_RUNS]
    return [run_folder for folder in folders if (run_folder := cached_run_folder(folder)).config]


def cached_run_folder(folder: Path) -> RunFolder:
    """A folder's cached content while its files are unchanged: a list that is redrawn each second
    would otherwise read megabytes.
    """
    return _read(folder, *(file_stamp(folder / name) for name in CACHED_FILES))


@lru_cache(maxsize=MOST_RUNS)
def _read(folder: Path, *_: object) -> RunFolder:
    return RunFolder(folder)


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does; None if there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
