"""A run's id, and its folder on this host."""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from es_queue.config.run_config import RunConfig
from es_queue.errors import RunFolderError, UsageError
from es_queue.private_files import make_run_folder, refuse_open_parents
from es_queue.protocol import keys
from es_queue.run_folder import NamedRun, find_run, refuse_links, runs_folder
from master.run.launch import Launch

LOGGER = logging.getLogger("es_queue.run")


@dataclass(frozen=True)
class RunPaths:
    """A run's id, and its folder on this host. shared: with the user's group."""

    run: str
    run_dir: Path
    shared: bool = False

    @property
    def named_run(self) -> NamedRun:
        return NamedRun(self.run, self.run_dir)

    @property
    def config_file(self) -> Path:
        return self.run_dir / "config.json"

    def prepare(self) -> None:
        """Make the folder. Raises RunFolderError if it cannot be written, or others can write to
        it.
        """
        refuse_links(self.run_dir)
        try:
            if warning := refuse_open_parents(self.run_dir):
                LOGGER.warning(warning)
            make_run_folder(self.run_dir, self.shared)
        except OSError as error:
            raise RunFolderError(
                f"run-dir {self.run_dir} cannot be created ({error.strerror}); give a folder "
                f"that you can write to"
            ) from None
        probe = self.run_dir / f".probe-{secrets.token_hex(4)}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunFolderError(
                f"run-dir {self.run_dir} cannot be written ({error.strerror}); give a folder "
                f"that you can write to"
            ) from None


def make_new_paths(config: RunConfig, launch: Launch) -> RunPaths:
    """The id and folder of a new run. Raises UsageError for a folder that holds a run already."""
    run = launch.run or derive_run_id(config.task)
    paths = new_paths(keys.checked_run_id(run), launch)
    if paths.config_file.exists():
        raise UsageError(
            f"run-dir {paths.run_dir} holds a run already; continue it with "
            f"--resume {paths.named_run.word}, or give another --run"
        )
    return paths


def derive_run_id(env: str) -> str:
    """``bipedalwalker-v2-1120-143259-4f``: environment, time, and two random letters."""
    name = "".join(
        letter if letter.isascii() and letter.isalnum() else "-" for letter in env.lower()
    ).strip("-")
    return f"{name[:22].strip('-')}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(1)}"


def new_paths(run: str, launch: Launch) -> RunPaths:
    return RunPaths(run, launch.run_dir or runs_folder(launch.runs_dir) / run, launch.shared)


def existing_paths(word: str, launch: Launch) -> RunPaths:
    """Paths of the run that ``word`` names. Raises UsageError for an impossible name, and
    RunFolderError for a folder with links.
    """
    named = find_run(word, launch.runs_dir)
    run_dir = launch.run_dir or named.folder
    refuse_links(run_dir)
    return RunPaths(keys.checked_run_id(named.run), run_dir, launch.shared)


def remove_unstarted_config(launch: Launch) -> None:
    """Remove the settings of a run whose master was killed before its first checkpoint."""
    paths = new_paths(launch.run or "", launch)
    if not any((paths.run_dir / "checkpoints").glob("*")):
        paths.config_file.unlink(missing_ok=True)
