"""The command line of es-master: RunConfig's fields as flags, the options of a launch, and TOML files of settings."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import textwrap
import tomllib
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import es_queue
from es_queue.config import RunConfig, default_of, option_fields
from es_queue.errors import UsageError
from es_queue.recipes import recipe_for
from es_queue.settings import from_values, unknown_option
from es_queue.validation import checked_value, number_or_text

#: What --resume may change: how long a run goes on and how its end is measured, never what was trained so far.
RESUMABLE = ("generations", "max_steps", "max_seconds", "target_reward", "final_episodes")
#: A recipe's search settings are one tuned set: they are left out whole when one of these is chosen otherwise.
TUNED_TOGETHER = ("strategy", "policy", "optimizer")
#: More local processes than any one host serves well; it catches a slip of the keyboard.
MOST_WORKERS = 4096

COMMAND_LINE = "the command line"
SCHEMES = ("redis://", "rediss://", "unix://")
RUN_ID = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)

DESCRIPTION = """\
Train a policy with Evolution Strategies on RQ workers.

  es-master --env BipedalWalker-v3
      on a private server, with local workers
  es-master --env BipedalWalker-v3 --redis-url redis://host:6379
      with "rq worker --url redis://host:6379" on any host, at any time
"""
EPILOG = """\
A setting comes from its flag, else from the --config file, else from the
built-in recipe for the environment, else from the default shown here.

exit codes: 0 done, 2 bad usage, 3 Redis, 4 run busy or taken over,
            5 environment, 6 run folder, 130 interrupted
"""
METAVARS = {
    "env": "ID",
    "env_arg": "KEY=VALUE",
    "wrapper": "MODULE:CLASS",
    "hidden": "N,N",
    "step_limit": "LIMIT",
    "reward_floor": "X",
    "patience": "N,D",
    "stall": "I:X:N",
    "target_reward": "X",
}


@dataclass(frozen=True)
class Launch:
    """How this process takes part in a run; nothing here changes a number of the run.

    redis_url: None starts a private server; kept out of repr, for it may hold a password
    workers:   local worker processes, None for the command's own choice
    run:       id of a new run, None to derive one; ``resume`` is the id of an existing one
    """

    redis_url: str | None = field(default=None, repr=False)
    workers: int | None = None
    queue: str = "default"
    run: str | None = None
    run_dir: Path | None = None
    resume: str | None = None
    noise_dir: Path | None = None
    quiet: bool = False
    json: bool = False


def parse(argv: list[str] | None) -> tuple[dict[str, Any], Launch]:
    """The settings that were given, by flag or else by --config, each checked; and the launch.

    ``argv`` is the command line without the program's name, None for this process's own. Raises UsageError
    for all that cannot be; --help and --version print and end the process.
    """
    given, unknown = _parser().parse_known_args(_joined(argv))
    _refuse_unknown(unknown)
    named = vars(given)
    path = named.pop("config", None)
    launch = _launch({one.name: named.pop(one.name) for one in fields(Launch) if one.name in named})
    values = {} if path is None else read_settings(Path(path))
    for name, value in named.items():
        values[name] = _checked_flag(option_fields()[name], value)
    if launch.resume is not None:
        _refuse_changes(values)
    return values, launch


def resolve(values: dict[str, Any]) -> RunConfig:
    """The whole configuration of a new run: ``values``, else the environment's recipe, else the defaults.

    Raises UsageError where values cannot be or do not fit together, and without ``env``.
    """
    recipe = recipe_values(values)
    try:
        return from_values({**recipe, **values}, "the settings")
    except UsageError as error:
        if recipe and _fits(values):
            raise UsageError(f"{error} (the recipe for {values['env']} sets {', '.join(recipe)})") from None
        raise


def recipe_values(values: dict[str, Any]) -> dict[str, Any]:
    """What the recipe for ``values["env"]`` adds to ``values``; its search settings only if its method is kept."""
    recipe = recipe_for(str(values.get("env", "")))
    tuned = all(values[name] == recipe.get(name, default_of(name)) for name in TUNED_TOGETHER if name in values)
    groups = {name: one.metadata["group"] for name, one in option_fields().items()}
    return {name: value for name, value in recipe.items() if name not in values and (tuned or groups.get(name) != "search")}


def read_settings(path: Path) -> dict[str, Any]:
    """Checked settings from a flat TOML file, its names with dashes or underscores. Raises UsageError."""
    values: dict[str, Any] = {}
    for key, value in _toml(path).items():
        name = key.replace("-", "_")
        if name in values:
            raise UsageError(f"{path} has {name} twice, with a dash and with an underscore: keep one")
        if name in {"config", "version", *(one.name for one in fields(Launch))}:
            raise UsageError(f"{path} has {key!r}, which only the command line takes: use --{name.replace('_', '-')}")
        if name not in option_fields():
            raise UsageError(unknown_option(key, str(path)))
        values[name] = checked_value(option_fields()[name], value, str(path))
    return values


def _toml(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_bytes().decode("utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text, as TOML must be") from None
    except (ValueError, RecursionError) as error:  # ValueError also covers a number of thousands of digits
        reason, _, place = str(error).partition(" (at ")
        found = re.search(r"line (\d+)", place)
        line = found.group(1) if found else max(1, len(text.splitlines()))
        raise UsageError(f"{path}, line {line}: not TOML: {reason}") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; es-master --help explains all options")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="es-master",
        usage="es-master --env ID [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: _Formatter(prog, max_help_position=30),
        add_help=False,
    )
    _add_launch_options(parser.add_argument_group("launch"))
    groups: dict[str, argparse._ArgumentGroup] = {}
    for one in option_fields().values():
        title = one.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_option(groups[title], one)
    return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Description and epilog as written; help texts wrapped to the terminal, between 60 and 120 columns."""

    def __init__(self, prog: str, max_help_position: int = 30) -> None:
        super().__init__(prog, max_help_position=max_help_position)
        self._width = max(60, min(self._width, 120))

    def _split_lines(self, text: str, width: int) -> list[str]:
        # argparse would break a flag such as --max-steps at its dashes.
        return textwrap.wrap(text, width, break_on_hyphens=False)


def _add_launch_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-h", "--help", action="help", help="show this text and end")
    add("--version", action="version", version=f"es-queue {es_queue.__version__}", help="show the version and end")
    add("--redis-url", metavar="URL", help="Redis or Valkey to work over; other users of this host see it in the process list, so put a password in RQ_REDIS_URL [default: RQ_REDIS_URL, then REDIS_URL, then a private server]")
    add("--workers", metavar="N", help="local workers to start [processes; default: one a core with a private server, none with --redis-url]")
    add("--queue", metavar="NAME", help="RQ queue on which the workers' seats are offered [default: default]")
    add("--run", metavar="ID", help="id of the new run: a-z, 0-9 and dashes, at most 40 [default: made from environment and time]")
    add("--run-dir", metavar="PATH", help="folder for the run's checkpoints and logs [default: named after the run]")
    add("--resume", metavar="RUN", help=f"go on with a run; only {', '.join('--' + _dashed(name) for name in RESUMABLE)} may change")
    add("--config", metavar="FILE", help="TOML file of settings by the names of these options, from task to machinery; a flag wins over it")
    add("--noise-dir", metavar="PATH", help="folder of the noise table that all processes of this host share [default: ES_QUEUE_NOISE_DIR, then the user's cache]")
    add("--quiet", action="store_true", help="print warnings, errors and the summary alone")
    add("--json", action="store_true", help="print progress as JSON, a line a generation")


def _add_option(group: argparse._ArgumentGroup, one: Field[Any]) -> None:
    flag = f"--{_dashed(one.name)}"
    # A percent sign is argparse's own in a help text.
    text = _explained(one).replace("%", "%%")
    if one.type == "bool":
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        return
    repeatable = one.name in ("env_arg", "wrapper")
    metavar = METAVARS.get(one.name) or {"int": "N", "float": "X"}.get(str(one.type), "NAME")
    group.add_argument(flag, metavar=metavar, action="append" if repeatable else "store", help=text)


def _explained(one: Field[Any]) -> str:
    """Effect, allowed values, unit and default of an option."""
    choices = one.metadata["choices"]
    listed = f"one of {', '.join(choices)}" if choices else ""
    default = "required" if one.name == "env" else f"default: {_default_shown(one.default)}"
    return f"{one.metadata['text']} [{'; '.join(filter(None, (listed, one.metadata['unit'], default)))}]"


def _default_shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _flags() -> list[str]:
    names = [*option_fields(), *(one.name for one in fields(Launch)), "config", "help", "version"]
    switches = [name for name, one in option_fields().items() if one.type == "bool"]
    return [f"--{_dashed(name)}" for name in names] + [f"--no-{_dashed(name)}" for name in switches]


def _joined(argv: list[str] | None) -> list[str] | None:
    """``--reward-floor -1e3`` as one word: argparse takes a negative number with an exponent for a flag."""
    words = list(sys.argv[1:] if argv is None else argv)
    joined: list[str] = []
    for word in words:
        negative = word.startswith("-") and not isinstance(number_or_text(word), str)
        if negative and joined and joined[-1] in _flags():
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _refuse_unknown(unknown: list[str]) -> None:
    """Raise UsageError for the first word that is no option. Values are not repeated: one may be a password."""
    for word in unknown:
        if word.startswith("-") and word != "--":
            flag = word.partition("=")[0]
            near = difflib.get_close_matches(flag, _flags(), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "es-master --help lists all options"
            raise UsageError(f"{COMMAND_LINE} has the unknown flag {flag!r}; {hint}")
    words = [word for word in unknown if word != "--"]
    if words:
        shown = "a word" if "://" in words[0] else repr(words[0])
        raise UsageError(f"{COMMAND_LINE} has {shown} without a flag before it; es-master --help lists all options")


def _checked_flag(one: Field[Any], value: Any) -> Any:
    numeric = one.type in ("int", "float") and isinstance(value, str)
    return checked_value(one, number_or_text(value) if numeric else value, COMMAND_LINE)


def _launch(given: dict[str, Any]) -> Launch:
    for name, value in given.items():
        if value == "":
            raise UsageError(f"{name} is empty in {COMMAND_LINE}: leave --{_dashed(name)} out or give it a value")
    for name in ("run", "resume"):
        if name in given and not RUN_ID.fullmatch(given[name]):
            raise UsageError(f"{name} is {given[name]!r} in {COMMAND_LINE}: use 1 to 40 of a-z, 0-9 and dashes")
    if "run" in given and "resume" in given:
        raise UsageError(f"{COMMAND_LINE} has --run and --resume: --resume names the run already, so leave --run out")
    if "workers" in given:
        given["workers"] = _workers(given["workers"])
    for name in ("run_dir", "noise_dir"):
        if name in given:
            given[name] = Path(given[name])
    return Launch(**{**given, "redis_url": _redis_url(given.get("redis_url"))})


def _workers(text: str) -> int:
    number = number_or_text(text)
    if not isinstance(number, int) or not 0 <= number <= MOST_WORKERS:
        raise UsageError(f"workers is {text!r} in {COMMAND_LINE}: use a whole number from 0 to {MOST_WORKERS}")
    return number


def _redis_url(given: str | None) -> str | None:
    """The URL of the flag, else of RQ's own variable, else of the usual one. Its text is never shown."""
    sources = {"--redis-url": given, "RQ_REDIS_URL": os.environ.get("RQ_REDIS_URL"), "REDIS_URL": os.environ.get("REDIS_URL")}
    for source, url in sources.items():
        if url and not url.startswith(SCHEMES):
            raise UsageError(f"{source} is no address of Redis: use redis://host:port/db, rediss:// for TLS, or unix://path")
        if url:
            return url
    return None


def _refuse_changes(values: dict[str, Any]) -> None:
    fixed = [name for name in values if name not in RESUMABLE]
    if fixed:
        raise UsageError(
            f"--resume goes on with the run's own settings, so {', '.join(fixed)} cannot be set: "
            f"only {', '.join(RESUMABLE)} can; start a new run for the rest"
        )


def checked_changes(values: dict[str, Any]) -> dict[str, Any]:
    """What a resumed run may change, from Python. Raises UsageError."""
    fixed = [name for name in values if name not in RESUMABLE]
    if fixed:
        raise UsageError(f"changes holds {', '.join(map(str, fixed))}, but a resumed run can change only {', '.join(RESUMABLE)}")
    return {name: checked_value(option_fields()[name], value, "changes") for name, value in values.items()}


def _fits(values: dict[str, Any]) -> bool:
    try:
        from_values(values, "the settings")
    except UsageError:
        return False
    return True
