"""Parse es-master's command line: settings from flags and TOML files, and the launch's options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from es_queue.command_line import CommandParser
from es_queue.config.recipes import format_recipe, named_recipe, without_layers
from es_queue.config.run_config import (
    check_changes,
    check_resume_changes,
    every_setting,
    format_unknown_option,
)
from es_queue.config.settings import (
    COMMAND_LINE,
    CUSTOM_NAME,
    NONE,
    Setting,
    declared,
    format_flag,
    number_or_text,
    short,
)
from es_queue.errors import DecodeError, UsageError
from es_queue.files import MAX_TOML, parse_toml, read_file
from es_queue.host import checked_workers, default_workers
from es_queue.protocol.connection import named_url
from es_queue.protocol.control import LATEST
from es_queue.protocol.keys import checked_run_id
from es_queue.text import parse_number_ranges
from es_queue.user_code import allowing, modules_named_by, require_trust
from master.cli.flags import launch_names, make_parser
from master.display.video_jobs import validate_video_support
from master.run.launch import (
    ATTACH,
    PURGE,
    VERBS,
    ControlArgs,
    Launch,
    parse_warm_start,
    with_run_server,
)
from master.storage.trackers import parse_trackers

#: More local workers per core cause a warning.
USEFUL_PER_CORE = 4
MOST_GENERATIONS, MOST_SEEDS = 2**31, 100
#: Short names that people use for a setting.
ALIASES = {"target": "target_reward"}


def parse_command_line(argv: list[str] | None) -> tuple[dict[str, Any], Launch]:
    """The explicit settings, from flags, else --config, else --recipe, each checked; and the launch
    options.

    ``argv`` is the command line without the program's name, None for this process's own. Raises
    UsageError for invalid options; --help and --version print and end the process.
    """
    own = own_strategy_settings(sys.argv[1:] if argv is None else argv)
    known = {**every_setting(), **own}
    named = vars(make_parser(own).parse_words(argv))
    path, recipe = named.pop("config", None), named.pop("recipe", None)
    control_args = parse_control_args(named)
    given = {name: named.pop(name) for name in [*named] if name not in known}
    launch = _make_launch({**given, "control_args": control_args})
    inherited = {} if recipe in (None, NONE) else named_recipe(recipe)
    explicit: dict[str, Any] = {}
    if path is not None:
        explicit = read_settings(Path(path))
        modules = modules_named_by(explicit)
        require_trust(str(path), modules, launch.trust, modules_named_by(named), UsageError)
    for name, value in named.items():
        explicit[name] = known[name].from_text(value, COMMAND_LINE)
    if explicit.get("policy") not in (None, inherited.get("policy")):
        inherited = without_layers(inherited)
    values = inherited | explicit
    launch = replace(
        launch,
        recipe=recipe or "",
        inherited=tuple(inherited.keys() - explicit.keys()),
        own_modules=tuple(modules_named_by({name: explicit[name] for name in named})),
        notes=format_recipe(values, [*inherited.keys() - explicit.keys()], recipe or ""),
    )
    if launch.resume is not None:
        check_resume_changes(values, COMMAND_LINE)
    _validate_combinations(launch, values)
    return values, launch


def own_strategy_settings(argv: Sequence[str]) -> dict[str, Setting]:
    """The settings of the user's own strategy that a command line names. Raises UsageError."""
    first = CommandParser("es-master", "", add_help=False, argument_default=argparse.SUPPRESS)
    first.add_argument("--strategy")
    name = str(vars(first.parse_known_args(argv)[0]).get("strategy", ""))
    if not CUSTOM_NAME.fullmatch(name):
        return {}
    # start-up: few runs have a strategy of their own
    from es_queue.strategies import load_strategy_class

    # The run refuses it if it cannot be loaded.
    with suppress(UsageError), allowing(modules_named_by({"strategy": name})):
        return declared(load_strategy_class(name).Settings)
    return {}


# --- the options of a launch


def parse_seeds(text: str) -> tuple[int, ...]:
    """``1-5`` or ``1,3,7-9`` as seeds, in the order given. Raises UsageError for anything else."""
    try:
        return parse_number_ranges(text, "seed", MOST_SEEDS, 2**63 - 1)
    except ValueError as error:
        raise UsageError(f"--seeds is {short(text)}: {error}") from None


def parse_whole_number(name: str, text: str, most: int) -> int:
    """From 0 to ``most``. Raises UsageError."""
    number = number_or_text(text)
    if not isinstance(number, int) or not 0 <= number <= most:
        raise UsageError(f"--{name} is {text!r}: use a whole number from 0 to {most}")
    return number


#: How the text of a flag becomes the launch's value; the others stay as they are.
LAUNCH_PARSERS: dict[str, Callable[[Any], Any]] = {
    "workers": lambda text: checked_workers(text, COMMAND_LINE),
    "video_every": lambda text: parse_whole_number("video-every", text, MOST_GENERATIONS),
    "track": lambda texts: parse_trackers(",".join(texts)),
    "hook": tuple,
    "run": checked_run_id,
    "seeds": parse_seeds,
    "run_dir": Path,
    "runs_dir": Path,
    "noise_dir": Path,
    "warm_start": parse_warm_start,
}


def _make_launch(given: dict[str, Any]) -> Launch:
    for name, value in given.items():
        if value == "" and name != "listen":
            raise UsageError(f"{format_flag(name)} is empty: leave it out or give it a value")
    if "standby" in given:
        if "resume" in given:
            raise UsageError(
                "--standby and --resume are both given: --standby resumes the run by itself, so "
                "leave --resume out"
            )
        given |= {"resume": given["standby"], "standby": True}
    for name, parse in LAUNCH_PARSERS.items():
        if name in given:
            given[name] = parse(given[name])
    validate_video_support(given.get("video_every", 0))
    for name in ("run", "seeds", "warm_start"):
        if name in given and "resume" in given:
            flag = format_flag(name)
            raise UsageError(
                f"{flag} and --resume are both given: --resume continues an existing run, so "
                f"leave {flag} out"
            )
    warnings: list[str] = []
    if (workers := given.get("workers", 0)) > USEFUL_PER_CORE * (cores := default_workers()):
        warnings.append(
            f"--workers is {workers}, but this host has {cores} core{'s' * (cores > 1)}: a worker "
            f"keeps one core busy, so --workers {cores} trains as fast with less memory"
        )
    file = given.get("redis_password_file")
    url, source = named_url(given.get("redis_url"), file, warnings.append)
    given |= {"redis_url": url, "redis_source": source, "warnings": tuple(warnings)}
    launch = with_run_server(Launch(**given))
    if file is not None and launch.redis_url is None:
        raise UsageError(
            "--redis-password-file belongs to a named Redis, and a private server needs no "
            "password: give --redis-url or set RQ_REDIS_URL"
        )
    return launch


def _validate_combinations(launch: Launch, values: dict[str, Any]) -> None:
    """Raises UsageError for options that cannot be combined."""
    if launch.control_args is not None:
        training = ("run", "resume", "workers", "seeds", "warm_start", "listen")
        trained = [name for name in training if getattr(launch, name) not in (None, ())]
        if extra := [*trained, *values]:
            raise UsageError(
                f"--{launch.control_args.verb} controls a run and trains nothing, so leave "
                f"{format_flag(extra[0])} out"
            )
    if launch.video_every and values.get("keep_generations") == 0:
        raise UsageError(
            f"--video-every is {launch.video_every}, but --keep-generations is 0 and videos are "
            "made from recorded individuals: leave --video-every out, or set "
            "--keep-generations to 1 or more"
        )
    if launch.standby and launch.redis_url is None:
        raise UsageError(
            "--standby needs a shared Redis, because a private server ends with its master's "
            "host: give --redis-url"
        )
    if launch.seeds and "seed" in values:
        raise UsageError(
            "--seed and --seeds are both given: --seeds names all seeds, so leave --seed out"
        )
    if launch.listen is not None and launch.redis_url is not None:
        raise UsageError(
            "--listen opens the private server, but none is started, because "
            f"{launch.redis_source} names a Redis: leave one out, or give --redis-url private"
        )


# --- the flags that control a run


def parse_control_args(given: dict[str, Any]) -> ControlArgs | None:
    """Take the control flags out of ``given``; None if there are none. Raises UsageError."""
    verbs = [verb for verb in VERBS if verb in given]
    runs = [given.pop(verb) for verb in verbs]
    texts, at, yes = given.pop("set", None), given.pop("at", None), given.pop("yes", False)
    if len(verbs) > 1:
        raise UsageError(f"--{verbs[0]} and --{verbs[1]} are both given: give only one of them")
    verb = verbs[0] if verbs else ""
    if texts is not None and verb != ATTACH:
        raise UsageError("--set is given without --attach RUN: use them together")
    if yes and verb != PURGE:
        raise UsageError("--yes is given without --purge RUN: use them together")
    if at is not None and texts is None:
        raise UsageError("--at is given without --set NAME=VALUE: use them together")
    if verb == ATTACH and not texts:
        raise UsageError(
            "--attach is given without --set NAME=VALUE: to watch a run, use es-status RUN --watch"
        )
    if not verb:
        return None
    generation = None if at is None else parse_whole_number("at", at, LATEST)
    return ControlArgs(verb, runs[0], parse_changes(texts or []), generation, yes)


def parse_changes(texts: list[str]) -> dict[str, Any]:
    """``name=value`` words as checked settings that can change during a run. Raises UsageError."""
    settings: dict[str, Any] = {}
    for text in texts:
        label, equals, value = text.partition("=")
        name = ALIASES.get(label, label).replace("-", "_")
        if not equals:
            raise UsageError(f"--set is {text!r}: use NAME=VALUE, such as learning_rate=0.01")
        if name in settings:
            raise UsageError(f"--set has {name} twice: give it once")
        settings |= check_changes({name: value}, "--set")
    return settings


# --- files of settings


def read_settings(path: Path) -> dict[str, Any]:
    """Checked settings from a flat TOML file, its names with dashes or underscores. Raises
    UsageError.
    """
    if path.suffix == ".json":
        raise UsageError(
            f"{path} is JSON, but --config reads TOML: docs/coming_from.md translates the keys of "
            "other projects' experiment files"
        )
    try:
        table = parse_toml(read_file(path, MAX_TOML, follow=True))
    except OSError as error:
        raise UsageError(
            f"the configuration file {path} cannot be read: {error.strerror}"
        ) from None
    except DecodeError as error:
        raise UsageError(f"the configuration file {path} cannot be used: {error}") from None
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in values:
            raise UsageError(
                f"{path} has {name} twice, with a dash and with an underscore: keep one"
            )
        if name in launch_names():
            raise UsageError(
                f"{path} has {key!r}, which only the command line takes: use {format_flag(name)}"
            )
        if name not in every_setting():
            raise UsageError(format_unknown_option(key, str(path)))
        values[name] = every_setting()[name].checked(value, str(path))
    return values
