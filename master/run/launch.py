"""The options of one launch, as flags or ``train`` give them; the run that they name, and its
folder on this host.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from es_queue.credentials import with_password
from es_queue.errors import RunFolderError, UsageError
from es_queue.pretrained import FOLDER, path_of
from es_queue.private_files import make_run_folder, refuse_open_parents
from es_queue.protocol import keys
from es_queue.protocol.connection import URL_FLAG, redacted_url
from es_queue.protocol.control import CONTINUE, PAUSE, STOP
from es_queue.run_folder import LEADER_FILE, NamedRun, find_run, refuse_links, runs_folder
from master.services.leader import leader_of

LOGGER = logging.getLogger("es_queue.run")
#: Before an environment's id: the trained policy that comes with the package.
PRETRAINED = "pretrained:"


ATTACH, PURGE, REPLAY = "attach", "purge", "replay"
VERBS = (ATTACH, STOP, PAUSE, CONTINUE, PURGE, REPLAY)


@dataclass(frozen=True)
class ControlArgs:
    """One of VERBS for a run. run: a word for it; settings: what --set changes from generation
    ``at`` on, None for the next; yes: do not ask.
    """

    verb: str
    run: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    at: int | None = None
    yes: bool = False


@dataclass(frozen=True)
class Launch:
    """How this process takes part in a run. Nothing here changes the run's results. Most fields are
    flags, see ``master/cli/flags.py``.

    redis_url:     None starts a private server; not in the repr, because it can hold a password
    redis_source:  the flag or variable that names redis_url, empty if the run's folder does
    workers:       None: the command chooses
    run:           None: derived from environment and time
    resume:        also that of --standby
    listen:        "": the command chooses the address; None: only this user on this host
    video_every:   0: none
    control_args:  a request to a run that another process leads; this process then trains nothing
    warnings:      warnings about the source of the password, printed at once
    recipe:        a named recipe; "none": not even the environment's own counts
    inherited:     settings whose values come from a named recipe
    notes:         lines about a new run's settings, shown once it has begun
    own_modules:   modules that the command line or the Python program itself names
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
    hook: tuple[str, ...] = ()
    control_args: ControlArgs | None = None
    insecure: bool = False
    shared: bool = False
    warnings: tuple[str, ...] = ()
    recipe: str = ""
    inherited: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    own_modules: tuple[str, ...] = ()
    trust: bool = False
    redis_source: str = ""


def parse_warm_start(text: str) -> Path:
    """A path, or ``pretrained:ENV``. Raises UsageError without a suitable bundled policy."""
    if not text.startswith(PRETRAINED):
        return Path(text)
    path = path_of(text.removeprefix(PRETRAINED))
    if path.suffix != ".npz":
        raise UsageError(
            f"warm-start is {text!r}, whose bundled policy is a seed list: es-play --pretrained "
            "plays it, but no run can begin with it"
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
    """``bipedalwalker-v2-1120-143259-4f01ab``: environment, time, and six random letters."""
    name = re.sub(r"[^A-Za-z0-9]", "-", task).lower().strip("-")[:20].strip("-")
    return f"{name}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(3)}"


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


def with_run_server(launch: Launch) -> Launch:
    """The launch with the server of the run that it names, as the run's folder remembers it; a flag
    overrides that, the environment gives only the password. Raises UsageError, RunFolderError.
    """
    args = launch.control_args
    word = launch.resume or (args.run if args is not None and args.verb != REPLAY else None)
    if word is None or launch.redis_source == URL_FLAG or launch.listen is not None:
        return launch
    run, given = existing_run(word, launch), launch.redis_url
    leader = leader_of(run)
    if leader is None or (given and leader.is_on(run, given)):
        return launch
    if leader.url and not leader.is_trusted:
        if given:
            return launch
        raise UsageError(
            f"{run.folder / LEADER_FILE} names {leader.server} as the server of run {run.run}, but "
            "this account did not write it: give --redis-url to choose the server"
        )
    url, warnings = None, list(launch.warnings)
    if leader.url:
        file = launch.redis_password_file
        url = with_password(leader.url, None if file is None else Path(file), warnings.append)
    if given:
        warnings.append(
            f"run {run.run} is on {leader.server}, and {launch.redis_source} names "
            f"{redacted_url(given)}, which is not used: to move the run there, give --redis-url"
        )
    return replace(launch, redis_url=url, redis_source="", warnings=tuple(warnings))


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


def remove_new_folder(folder: Path, with_parent: bool = True) -> None:
    """Remove the folder of a new run that could not begin, and that of all runs if it is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    if with_parent:
        with suppress(OSError):  # it holds other runs
            folder.parent.rmdir()
