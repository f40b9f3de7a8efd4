"""The options of one launch, as flags or ``train`` give them; the run that they name, and its
folder on this host.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass, field, fields
from pathlib import Path

from es_queue.errors import RunFolderError, UsageError
from es_queue.pretrained import FOLDER, path_of
from es_queue.private_files import make_run_folder, refuse_open_parents
from es_queue.protocol import keys
from es_queue.run_folder import NamedRun, find_run, refuse_links, runs_folder
from master.control.control_arguments import ControlArgs

LOGGER = logging.getLogger("es_queue.run")
#: Before an environment's id: the trained policy that comes with the package.
PRETRAINED = "pretrained:"


@dataclass(frozen=True)
class Launch:
    """How this process takes part in a run. Nothing here changes the run's results.

    redis_url:     None starts a private server; not in the repr, because it can hold a password
    redis_password_file: file with the password of redis_url, if a flag named it
    workers:       number of local worker processes; None: the command chooses
    run:           id of a new run; None: derived from environment and time
    runs_dir:      folder of all runs; None: that of the environment variable
    resume:        name, folder or checkpoint of an existing run or study to continue
    standby:       resume the run only when its master is gone
    seeds:         start one run per seed instead of a single run
    warm_start:    checkpoint or run folder with the initial policy of a new run
    listen:        address at which the private server accepts other hosts; "": the command chooses;
    None: none
    video_every:   generations between two videos of the unperturbed policy; 0: none
    track:         experiment trackers that get the run's figures
    control_args:  a request to a run that another process leads; this process then trains nothing
    insecure:      suppress warnings about a passwordless or unencrypted Redis
    shared:        make the run's folder accessible to the user's group
    warnings:      warnings about the source of the password, printed at once
    recipe:        a named recipe; "none": not even the environment's own counts
    inherited:     settings whose values come from a named recipe
    notes:         lines about a new run's settings, shown once it has begun
    own_modules:   modules that the command line or the Python program itself names
    trust:         allow the modules that a run's folder or a settings file names
    """

    redis_url: str | None = field(default=None, repr=False)
    redis_password_file: str | None = None
    workers: int | None = None
    queue: str = "default"
    run: str | None = None
    run_dir: Path | None = None
    runs_dir: Path | None = None
    resume: str | None = None
    standby: bool = False
    noise_dir: Path | None = None
    quiet: bool = False
    json: bool = False
    seeds: tuple[int, ...] = ()
    warm_start: Path | None = None
    listen: str | None = None
    video_every: int = 0
    track: tuple[str, ...] = ()
    control_args: ControlArgs | None = None
    insecure: bool = False
    shared: bool = False
    warnings: tuple[str, ...] = ()
    recipe: str = ""
    inherited: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    own_modules: tuple[str, ...] = ()
    trust: bool = False


LAUNCH_FIELDS = tuple(
    launch_field.name
    for launch_field in fields(Launch)
    if launch_field.name
    not in ("control_args", "warnings", "recipe", "inherited", "notes", "own_modules")
)


def parse_warm_start(text: str) -> Path:
    """A path, or ``pretrained:ENV``. Raises UsageError if no suitable policy of ENV is bundled."""
    if not text.startswith(PRETRAINED):
        return Path(text)
    path = path_of(text.removeprefix(PRETRAINED))
    if path.suffix != ".npz":
        raise UsageError(
            f"warm-start is {text!r}, whose bundled policy is a seed list: es-play --pretrained "
            f"plays it, but no run can begin with it"
        )
    return path


def format_warm_start(path: Path) -> str:
    """The word for ``parse_warm_start`` that names this file, on any host with the bundled
    policy.
    """
    if path.parent == FOLDER:
        return f"{PRETRAINED}{path.stem}"
    return f"./{path}" if str(path).startswith(PRETRAINED) else str(path)


# --- the run and its folder


def new_run(task: str, launch: Launch) -> NamedRun:
    """The id and folder of a new run. Raises UsageError for a folder that holds a run already."""
    run = named_run(keys.checked_run_id(launch.run or derive_run_id(task)), launch)
    if (run.folder / "config.json").exists() or run.is_study:
        raise UsageError(
            f"run-dir {run.folder} holds a run already; continue it with "
            f"--resume {run.word}, or give another --run"
        )
    return run


def derive_run_id(task: str) -> str:
    """``bipedalwalker-v2-1120-143259-4f``: environment, time, and two random letters."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in task)
    name = name.lower().strip("-")[:22].strip("-")
    return f"{name}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(1)}"


def named_run(run: str, launch: Launch) -> NamedRun:
    return NamedRun(run, launch.run_dir or runs_folder(launch.runs_dir) / run)


def existing_run(word: str, launch: Launch) -> NamedRun:
    """The run that ``word`` names. Raises UsageError for an impossible name, and RunFolderError for
    a folder with links.
    """
    found = find_run(word, launch.runs_dir)
    folder = launch.run_dir or found.folder
    refuse_links(folder)
    return NamedRun(keys.checked_run_id(found.run), folder)


def prepare_folder(folder: Path, shared: bool = False) -> None:
    """Make a run's folder; shared: with the user's group. Raises RunFolderError if it cannot be
    written, or if others can write to it.
    """
    refuse_links(folder)
    verb = "created"
    try:
        if warning := refuse_open_parents(folder):
            LOGGER.warning(warning)
        make_run_folder(folder, shared)
        verb, probe = "written", folder / f".probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunFolderError(
            f"run-dir {folder} cannot be {verb} ({error.strerror}); give a folder that you can "
            "write to"
        ) from None
