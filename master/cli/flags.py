"""The flags of es-master as argparse sees them: names, help texts, and the sentence for a word that
is none of them.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from dataclasses import Field
from typing import Any, NoReturn

import es_queue
from es_queue.config.changeable import CHANGEABLE, RESUMABLE
from es_queue.config.parsing import COMMAND_LINE, FORMER_NAMES
from es_queue.config.recipes import recipe_names
from es_queue.config.run_config import option_fields
from es_queue.config.validation import number_or_text
from es_queue.errors import UsageError
from es_queue.security.passwords import redact_address

DESCRIPTION = """\
Train a policy with Evolution Strategies on RQ workers.

  es-master --env BipedalWalker-v3
      on a private server, with local workers
  es-master --env BipedalWalker-v3 --redis-url redis://host:6379
      with "rq worker --url redis://host:6379" on any host, at any time
"""
EPILOG = """\
A setting comes from its flag, else from the --config file, else from the
--recipe, else from the built-in recipe for the environment, else from the
default shown here.

exit codes: 0 done, 2 bad usage, 3 Redis, 4 run busy or taken over,
            5 environment, 6 run folder, 130 interrupted
"""
METAVARS = {
    "env": "ID",
    "objective": "MODULE:FUNCTION",
    "env_arg": "KEY=VALUE",
    "wrapper": "MODULE:CLASS",
    "hidden": "N,N",
    "step_limit": "LIMIT",
    "reward_floor": "X",
    "patience": "N,D",
    "stall": "I:X:N",
    "target_reward": "X",
}


class _MasterParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{redact_address(message)}; es-master --help explains all options")


#: The flags that are no settings, by the names of their values.
LAUNCH_NAMES = (
    "help",
    "version",
    "redis_url",
    "redis_password_file",
    "insecure",
    "workers",
    "queue",
    "run",
    "run_dir",
    "shared",
    "resume",
    "standby",
    "seeds",
    "warm_start",
    "listen",
    "config",
    "recipe",
    "noise_dir",
    "video_every",
    "tensorboard",
    "quiet",
    "json",
    "stop",
    "pause",
    "continue",
    "attach",
    "set",
    "at",
    "purge",
    "yes",
    "replay",
)


def make_parser() -> argparse.ArgumentParser:
    """The parser of es-master; what was not given stays out of its namespace."""
    parser = _MasterParser(
        prog="es-master",
        usage="es-master --env ID [options], or es-master --stop RUN and the like",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: _MasterHelpFormatter(prog, max_help_position=30),
        add_help=False,
    )
    _add_launch_options(parser.add_argument_group("launch"))
    _add_control_options(
        parser.add_argument_group("control of a run, from any host that reaches its Redis")
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in option_fields().values():
        title = option.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_option(groups[title], option)
    for former, name in FORMER_NAMES.items():
        parser.add_argument(f"--{flag_name(former)}", dest=name, help=argparse.SUPPRESS)
    return parser


class _MasterHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Description and epilog as written; help texts wrapped to the terminal, between 60 and 120
    columns.
    """

    def __init__(self, prog: str, max_help_position: int = 30) -> None:
        super().__init__(prog, max_help_position=max_help_position)
        self._width = max(60, min(self._width, 120))

    def _split_lines(self, text: str, width: int) -> list[str]:
        # argparse would break a flag such as --max-steps at its dashes.
        return textwrap.wrap(text, width, break_on_hyphens=False)


def _add_launch_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-h", "--help", action="help", help="show this text and end")
    add(
        "--version",
        action="version",
        version=f"es-queue {es_queue.__version__}",
        help="show the version and end",
    )
    add(
        "--redis-url",
        metavar="URL",
        help=(
            "Redis or Valkey to work over; other users of this host see it in the process list, "
            "so put a password in RQ_REDIS_URL [default: RQ_REDIS_URL, then REDIS_URL, then a "
            "private server]"
        ),
    )
    add(
        "--redis-password-file",
        metavar="FILE",
        help=(
            "file that holds the password of the named Redis, for you alone to read [default: "
            "ES_QUEUE_REDIS_PASSWORD, then the file that ES_QUEUE_REDIS_PASSWORD_FILE names]"
        ),
    )
    add(
        "--insecure",
        action="store_true",
        help=(
            "do not warn of a Redis that others can reach without a password, or read on the way to"
        ),
    )
    add(
        "--workers",
        metavar="N",
        help=(
            "local workers to start [processes; default: one a core with a private server, none "
            "with --redis-url]"
        ),
    )
    add(
        "--queue",
        metavar="NAME",
        help="RQ queue on which the workers' seats are offered [default: default]",
    )
    add(
        "--run",
        metavar="ID",
        help=(
            "id of the new run: a-z, 0-9 and dashes, at most 40 [default: made from environment "
            "and time]"
        ),
    )
    add(
        "--run-dir",
        metavar="PATH",
        help="folder for the run's checkpoints and logs [default: named after the run]",
    )
    add(
        "--shared",
        action="store_true",
        help="let the group of the run's folder read and write it: folders 2770, files 0660; the "
        "private server stays yours [default: only you, 0700 and 0600]",
    )
    add(
        "--resume",
        metavar="RUN",
        help=(
            f"go on with a run; only {', '.join('--' + flag_name(name) for name in RESUMABLE)} "
            "may change"
        ),
    )
    add(
        "--standby",
        metavar="RUN",
        help=(
            "wait beside a run that another host drives, and go on with it when its master is gone"
        ),
    )
    add(
        "--seeds",
        metavar="LIST",
        help=(
            "one run for each seed, over the same workers, such as 1-5 or 1,4,7; ends with mean, "
            "interquartile mean and their 95 %% interval"
        ),
    )
    add(
        "--warm-start",
        metavar="PATH",
        help=(
            "begin with the policy of a checkpoint or run folder, or with pretrained:ENV, which "
            "comes along; also one of a smaller network or of fewer observations"
        ),
    )
    add(
        "--listen",
        metavar="HOST:PORT",
        nargs="?",
        const="",
        help=(
            "let other hosts reach the private server, by a password that it makes [default: "
            "this user on this host alone; without a value: all addresses, a free port]"
        ),
    )
    add(
        "--config",
        metavar="FILE",
        help=(
            "TOML file of settings by the names of these options, from task to machinery, or a "
            "JSON experiment file of evolution-strategies-starter, told key by key; a flag wins "
            "over it"
        ),
    )
    add(
        "--recipe",
        metavar="NAME",
        help=(
            "published settings by name, over which flags and the --config file win: "
            f"{', '.join(recipe_names())}"
        ),
    )
    add(
        "--noise-dir",
        metavar="PATH",
        help=(
            "folder of the noise table that all processes of this host share [default: "
            "ES_QUEUE_NOISE_DIR, then the user's cache]"
        ),
    )
    add(
        "--video-every",
        metavar="N",
        help=(
            "film the unperturbed policy every N generations, beside the run, into its folder "
            "videos/ (pip install 'es-queue[video]') [generations; default: 0, none]"
        ),
    )
    add(
        "--tensorboard",
        action="store_true",
        help=(
            "write the run's figures for TensorBoard too, into its folder tensorboard/ (pip "
            "install 'es-queue[tensorboard]')"
        ),
    )
    add("--quiet", action="store_true", help="print warnings, errors and the summary alone")
    add("--json", action="store_true", help="print progress as JSON, a line a generation")


def _add_control_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--attach",
        metavar="RUN",
        help="show a run that another process drives; Ctrl-C leaves the run alone",
    )
    add(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        help=(
            "with --attach: change a setting from the next generation on, and end; repeatable "
            f"({', '.join(CHANGEABLE)})"
        ),
    )
    add("--at", metavar="N", help="with --set: from generation N on, instead of the next")
    add("--stop", metavar="RUN", help="stop a run in order; --resume goes on with it")
    add(
        "--pause",
        metavar="RUN",
        help="let its workers finish their blocks and wait, or serve other runs",
    )
    add("--continue", metavar="RUN", help="go on with a paused run")
    add(
        "--purge",
        metavar="RUN",
        help="remove all that Redis holds of a run that nobody drives; asks first",
    )
    add("--yes", action="store_true", help="with --purge: do not ask")
    add(
        "--replay",
        metavar="RUN",
        help=(
            "compute a run's parameters again from its log, without environments, and compare "
            "digests"
        ),
    )


def _add_option(group: argparse._ArgumentGroup, option: Field[Any]) -> None:
    flag = f"--{flag_name(option.name)}"
    # A percent sign is argparse's own in a help text.
    text = _format_help(option).replace("%", "%%")
    if option.type == "bool":
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        return
    repeatable = option.name in ("env_arg", "wrapper")
    metavar = METAVARS.get(option.name) or {"int": "N", "float": "X"}.get(str(option.type), "NAME")
    group.add_argument(flag, metavar=metavar, action="append" if repeatable else "store", help=text)


def _format_help(option: Field[Any]) -> str:
    """Effect, allowed values, unit and default of an option."""
    choices = (*option.metadata["choices"], *(("module:Class",) if option.metadata["own"] else ()))
    allowed = f"one of {', '.join(choices)}" if choices else ""
    default = (
        "required, unless there is an objective"
        if option.name == "env"
        else f"default: {_format_default(option.default)}"
    )
    return (
        f"{option.metadata['text']} "
        f"[{'; '.join(filter(None, (allowed, option.metadata['unit'], default)))}]"
    )


def _format_default(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default)


def flag_name(name: str) -> str:
    return name.replace("_", "-")


def _flag_names() -> list[str]:
    names = [*option_fields(), *LAUNCH_NAMES]
    switches = [name for name, option in option_fields().items() if option.type == "bool"]
    return [f"--{flag_name(name)}" for name in names] + [
        f"--no-{flag_name(name)}" for name in switches
    ]


def join_negative_numbers(argv: list[str] | None) -> list[str] | None:
    """``--reward-floor -1e3`` as one word: argparse takes a negative number with an exponent for a
    flag.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    joined_words: list[str] = []
    for word in words:
        negative = word.startswith("-") and not isinstance(number_or_text(word), str)
        if negative and joined_words and joined_words[-1] in _flag_names():
            joined_words[-1] += f"={word}"
        else:
            joined_words.append(word)
    return joined_words


def validate_no_unknown_words(unknown: list[str]) -> None:
    """Raise UsageError for the first word that is no option. Values are not repeated: one may be a
    password.
    """
    for word in unknown:
        if word.startswith("-") and word != "--":
            flag = word.partition("=")[0]
            near = difflib.get_close_matches(flag, _flag_names(), n=3)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else "es-master --help lists all options"
            )
            raise UsageError(f"{COMMAND_LINE} has the unknown flag {flag!r}; {hint}")
    words = [word for word in unknown if word != "--"]
    if words:
        label = "a word" if "://" in words[0] else repr(words[0])
        raise UsageError(
            f"{COMMAND_LINE} has {label} without a flag before it; es-master --help lists "
            "all options"
        )
