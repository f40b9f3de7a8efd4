"""The options of one launch, as flags or ``train`` give them; the run that they name, and its
folder on this host.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from es_queue.config.run_config import check_changes
from es_queue.config.settings import COMMAND_LINE, number_or_text
from es_queue.credentials import with_password
from es_queue.errors import RunFolderError, UsageError
from es_queue.pretrained import FOLDER, path_of
from es_queue.private_files import make_run_folder, refuse_open_parents
from es_queue.protocol import keys
from es_queue.protocol.connection import URL_FLAG, redacted_url
from es_queue.protocol.control import CONTINUE, LATEST, PAUSE, STOP
from es_queue.run_folder import LEADER_FILE, NamedRun, find_run, refuse_links, runs_folder
from master.services.leader import leader_of

LOGGER = logging.getLogger("es_queue.run")
#: Before an environment's id: the trained policy that comes with the package.
PRETRAINED = "pretrained:"


ATTACH, PURGE, REPLAY = "attach", "purge", "replay"
VERBS = (ATTACH, STOP, PAUSE, CONTINUE, PURGE, REPLAY)
#: Short names that people use for a setting.
ALIASES = {"target": "target_reward"}


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
    hook:          classes of the user's own that the run's events are sent to
    control_args:  a request to a run that another process leads; this process then trains nothing
    insecure:      suppress warnings about a passwordless or unencrypted Redis
    shared:        make the run's folder accessible to the user's group
    warnings:      warnings about the source of the password, printed at once
    recipe:        a named recipe; "none": not even the environment's own counts
    inherited:     settings whose values come from a named recipe
    notes:         lines about a new run's settings, shown once it has begun
    own_modules:   modules that the command line or the Python program itself names
    trust:         allow the modules that a run's folder or a settings file names
    redis_source:  the flag or variable that names redis_url, empty if the run's folder does
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


LAUNCH_FIELDS = tuple(
    launch_field.name
    for launch_field in fields(Launch)
    if launch_field.name
    not in (
        "control_args",
        "warnings",
        "recipe",
        "inherited",
        "notes",
        "own_modules",
        "redis_source",
    )
)


def parse_warm_start(text: str) -> Path:
    """A path, or ``pretrained:ENV``. Raises UsageError if no suitable policy of ENV is bundled."""
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
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in task)
    name = name.lower().strip("-")[:20].strip("-")
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


# --- the flags of commands that control a run


def parse_control_args(given: dict[str, Any]) -> ControlArgs | None:
    """Take the control flags out of ``given``; None if there are none. Raises UsageError."""
    verbs = [verb for verb in VERBS if verb in given]
    runs = [given.pop(verb) for verb in verbs]
    texts, at, yes = given.pop("set", None), given.pop("at", None), given.pop("yes", False)
    if len(verbs) > 1:
        raise UsageError(f"{COMMAND_LINE} has --{verbs[0]} and --{verbs[1]}: give only one of them")
    verb = verbs[0] if verbs else ""
    for flag, is_given, verb_needed in (("set", texts is not None, ATTACH), ("yes", yes, PURGE)):
        if is_given and verb != verb_needed:
            raise UsageError(
                f"{COMMAND_LINE} has --{flag} without --{verb_needed} RUN: use them together"
            )
    if at is not None and texts is None:
        raise UsageError(
            f"{COMMAND_LINE} has --at without --set NAME=VALUE: --at is the generation of the "
            "change"
        )
    if not verb:
        return None
    if verb == ATTACH and not texts:
        raise UsageError(
            f"{COMMAND_LINE} has --attach without --set NAME=VALUE: to watch a run, use "
            "es-status RUN --watch"
        )
    return ControlArgs(
        verb,
        runs[0],
        parse_changes(texts or []),
        None if at is None else _parse_generation(at),
        yes,
    )


def parse_changes(texts: list[str]) -> dict[str, Any]:
    """``name=value`` words as checked settings that can change during a run. Raises UsageError."""
    settings: dict[str, Any] = {}
    for text in texts:
        label, equals, value = text.partition("=")
        name = ALIASES.get(label, label).replace("-", "_")
        if not equals:
            raise UsageError(
                f"set is {text!r} in {COMMAND_LINE}: use NAME=VALUE, such as learning_rate=0.01"
            )
        if name in settings:
            raise UsageError(f"set has {name} twice in {COMMAND_LINE}: give it once")
        settings |= check_changes({name: value}, COMMAND_LINE)
    return settings


def _parse_generation(text: str) -> int:
    number = number_or_text(text)
    if not isinstance(number, int) or not 0 <= number <= LATEST:
        raise UsageError(
            f"at is {text!r} in {COMMAND_LINE}: use the number of a generation, at most {LATEST}"
        )
    return number
