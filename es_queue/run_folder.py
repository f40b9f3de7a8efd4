"""Finds a run by one word: its name, its folder, a file in that folder, or a study."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from es_queue.errors import DecodeError, NoRunError, RunFolderError
from es_queue.files import parse_json, read_file
from es_queue.protocol.keys import RUN_ID
from es_queue.text import format_suggestion

RUNS_VARIABLE = "ES_QUEUE_RUNS"
STUDY_FILE = "seeds.json"
BEST = "best.npz"
#: Folder of a model's weights.
SNAPSHOTS = "snapshots"
CHECKPOINT_NAME = re.compile(r"generation-([0-9]{1,10})\.npz")
#: The newest reports of workers, one JSON text per line.
ERROR_REPORTS_FILE = "errors.jsonl"
#: Why the run failed; absent while it trains, and after any other end.
FAILURE_FILE = "failure.json"
#: Who leads the run or study, and on which server; locked by its master.
LEADER_FILE = "master.json"
#: The files that contain their run's name, the most reliable first.
NAMING_FILES = (STUDY_FILE, "run.json", "summary.json")
MOST_BYTES = 2**22
MOST_NAMES = 10
FILE_SUFFIXES = (".npz", ".json")
SEED_FOLDER = re.compile(r"s[0-9]{1,19}", re.ASCII)
#: Files and folders that es-queue writes to a run's folder, and reads there.
OWN_FILES = (
    *(*NAMING_FILES, "config.json", "metrics.jsonl"),
    *(ERROR_REPORTS_FILE, FAILURE_FILE, LEADER_FILE, BEST),
)
OWN_FOLDERS = (
    *("checkpoints", "slots", "replay", "logs", "videos", "redis"),
    *(SNAPSHOTS, "tensorboard", "wandb", "mlflow"),
)


@dataclass(frozen=True)
class NamedRun:
    """A run or study, and its folder on this host, which may not exist."""

    run: str
    folder: Path

    @property
    def word(self) -> str:
        """The shortest word that names it in a shell in the current folder."""
        if self.folder == runs_folder() / self.run:
            return self.run
        path = str(self.folder)
        return quote(path if os.sep in path else f"./{path}")

    @property
    def is_study(self) -> bool:
        return (self.folder / STUDY_FILE).is_file()

    @property
    def members(self) -> list[NamedRun]:
        """The runs of a study that have begun, by seed; else the run itself."""
        if not self.is_study:
            return [self]
        folders = [
            path
            for path in self.folder.glob("s*")
            if SEED_FOLDER.fullmatch(path.name) and not path.is_symlink()
        ]
        folders.sort(key=lambda path: int(path.name[1:]))
        return [NamedRun(f"{self.run}-{path.name}", path) for path in folders]

    @property
    def several_runs(self) -> str:
        """The end of a sentence about a study, for commands that need one run."""
        names = ", ".join(run.run for run in self.members)
        return f"is a study of several runs: name one of {names}"

    @property
    def server_folder(self) -> Path:
        """The folder of the private server; a study's runs share one."""
        parent = self.folder.parent
        return (parent if (parent / STUDY_FILE).is_file() else self.folder) / "redis"


def snapshots_place(setting: str, run: str, folder: Path) -> str:
    """Where a run keeps its model's snapshots: in its folder, or under the setting's."""
    return f"{setting.rstrip('/')}/{run}" if setting else str(folder.absolute() / SNAPSHOTS)


def runs_folder(runs_dir: str | Path | None = None) -> Path:
    """The folder of runs: that of --runs-dir, else ES_QUEUE_RUNS, else ./runs."""
    return Path(runs_dir or os.environ.get(RUNS_VARIABLE) or "runs")


def find_run(word: str | Path, runs_dir: str | Path | None = None) -> NamedRun:
    """The run of that name, in that folder, or with that file; it may not exist."""
    name, path, runs = str(word), Path(word), runs_folder(runs_dir)
    if RUN_ID.fullmatch(name):
        study, _, seed = name.rpartition("-")
        default = NamedRun(name, runs / name)
        if read_run_name(default.folder):
            return default
        if study and SEED_FOLDER.fullmatch(seed):
            member = NamedRun(name, runs / study / seed)
            if read_run_name(member.folder) == name:
                return member
        return NamedRun(read_run_name(path), path) if read_run_name(path) else default
    for folder in (path, *path.parents[:2]) if _exists(path) else ():
        if run_name := read_run_name(folder):
            return NamedRun(run_name, folder)
    return NamedRun(path.absolute().name, path)


def refuse_links(folder: Path) -> None:
    """Raises RunFolderError if one of es-queue's own files or folders is a link, which an archive
    can bring: commands would read, write and delete elsewhere.
    """
    for path in (*(folder / name for name in OWN_FILES + OWN_FOLDERS), *folder.glob("s[0-9]*")):
        if path.is_symlink():
            raise RunFolderError(
                f"{path} is a link: put the file or folder itself in its place, or remove it"
            )


def _exists(path: Path) -> bool:
    with suppress(OSError):  # the name is too long, or the folder may not be searched
        return path.exists()
    return False


def read_run_name(folder: Path) -> str:
    """The name of the run or study in a folder, or empty."""
    name = folder.absolute().name
    is_run = (folder / "config.json").is_file() and RUN_ID.fullmatch(name)
    return read_stored_name(folder) or (name if is_run else "")


def read_stored_name(folder: Path) -> str:
    """The name in the files of a run or study, or empty."""
    for file in NAMING_FILES:
        try:
            about = parse_json(read_file(folder / file, MOST_BYTES), MOST_BYTES)
        except (OSError, DecodeError):
            continue
        if isinstance(about, dict) and RUN_ID.fullmatch(run := str(about.get("run"))):
            return run
    return ""


def existing_folder(word: str | Path, runs_dir: str | Path | None = None) -> Path:
    """The folder of a run or study, else that path's. Raises NoRunError, RunFolderError."""
    run = find_run(word, runs_dir)
    folder = run.folder if run.folder.is_dir() else Path(word)
    if not folder.is_dir():
        raise no_run_error(run)
    refuse_links(folder)
    return folder


def no_run_error(
    run: NamedRun, servers: Sequence[str] = (), others: Sequence[str] = ()
) -> NoRunError:
    """The error for a run that is neither in its folder nor on ``servers``, which have the runs
    ``others``.
    """
    folders = [] if servers else run.folder.parent.glob("*")
    names = {*others, *(path.name for path in folders if read_run_name(path))}
    known = sorted(names - {run.run})
    suggestion = format_suggestion(run.run, known)
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    listed = (
        f"existing runs: {', '.join(known[:MOST_NAMES])}{more}" if known else "there are no runs"
    )
    return NoRunError(
        f"there is no run {run.run} in {', '.join(servers[:3]) or run.folder.parent}; "
        f"{suggestion and suggestion + ' '}{listed}"
    )


def checkpoint_path(
    word: str | Path, which: str = "best", runs_dir: str | Path | None = None
) -> Path:
    """The file itself, which may be a link, or the best policy or newest checkpoint of a run.
    Raises NoRunError, RunFolderError.
    """
    path = Path(word)
    if path.is_file() or path.suffix in FILE_SUFFIXES:
        return path.resolve() if path.is_symlink() else path
    folder = existing_folder(path, runs_dir)
    if (folder / STUDY_FILE).is_file():
        raise RunFolderError(f"{folder} {find_run(folder).several_runs}")
    others = sorted(folder.glob("checkpoints/generation-*.npz"))
    if which == "last":
        if others:
            return others[-1]
        raise RunFolderError(
            f"{folder} holds no checkpoint of a generation: wait until the run has saved one, or "
            "name another run"
        )
    for place in (BEST, f"checkpoints/{BEST}"):
        if (folder / place).is_file():
            return folder / place
    hint = f"; its newest checkpoint is {others[-1]}" if others else ""
    raise RunFolderError(f"{folder} holds no {BEST}: the run has not evaluated a policy yet{hint}")
