"""The flags of es-master: names, help texts, and the error for an unknown word."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import ClassVar

from es_queue.command_line import (
    PASSWORD_FILE_OPTION,
    CommandParser,
    add_options,
    add_runs_folder,
    add_version,
)
from es_queue.config.recipes import recipe_names
from es_queue.config.run_config import (
    PARTS,
    POLICIES,
    STRATEGIES,
    SYNONYMS,
    changeable,
    every_setting,
    own_settings,
    resumable,
    users_of,
)
from es_queue.config.settings import Setting, format_flag
from es_queue.errors import UsageError
from es_queue.text import format_suggestion

DESCRIPTION = """\
Train a policy with Evolution Strategies on RQ workers.

train:
  es-master --env BipedalWalker-v3
      on a private server, with one local worker per core
  es-master --env BipedalWalker-v3 --redis-url redis://host:6379
      on your Redis; "rq worker --url redis://host:6379" joins from any host
  es-master --env CartPole-v1 --seeds 1-5
      one run per seed, over the same workers
  es-master --resume RUN        continue a run exactly where it stopped

control a run from another terminal:
  es-master --stop RUN          also --pause, --continue, --purge, --replay
  es-master --attach RUN --set learning_rate=0.01

look at runs, policies and curves:
  es-status [RUN]    es-status --doctor    es-play RUN    es-plot RUN
"""
OWN_HELP = "Strategies and policies have options of their own: --help NAME (--help pgpe)"
EPILOG = """\
A setting comes from its flag, else from the --config file, else from the
--recipe, else from the built-in recipe for the environment, else from the
default shown here.

exit codes: 0 done, 2 bad usage, 3 Redis, 4 run busy or taken over,
            5 environment, 6 run folder, 130 interrupted
"""
#: The options of --help, by what a person wants to decide; --help-all shows the others too.
EVERYDAY: dict[str, tuple[str, ...]] = {
    "what to train": ("env", "objective", "policy", "seed"),
    "how to search": ("strategy", "population", "sigma", "scale", "seeds", "recipe", "config"),
    "how long": ("generations", "max_steps", "max_seconds", "target_reward"),
    "where": ("redis_url", "workers", "run"),
    "what to see": ("video_every", "help", "help_all"),
}
#: The group of settings that only some strategies or policies have.
OWN = "own settings"
#: Metavars of numbers, by unit.
UNIT_METAVARS = {"seconds": "SECONDS", "steps": "STEPS", "MB": "MB"}


class _MasterParser(CommandParser):
    synonyms: ClassVar[Mapping[str, str]] = {
        **{format_flag(word): format_flag(name) for word, name in SYNONYMS.items()},
        **dict.fromkeys(
            ("--n-envs", "--num-envs", "--n-jobs", "--n-workers", "--num-workers", "--cores"),
            "--workers for the number of processes, or --population for that of individuals",
        ),
        **dict.fromkeys(("--log-dir", "--logdir", "--save-dir", "--output"), "--runs-dir"),
        "--name": "--run to name a new run, or --resume to continue one",
        "--load": "--warm-start for a new run with its policy, or --resume to continue a run",
    }

    @property
    def actions(self) -> list[argparse.Action]:
        return self._actions

    def format_everyday_help(self) -> str:
        return self._format(self.usage or "", self.description or "", EVERYDAY, OWN_HELP)

    def format_help_of(self, topic: str) -> str:
        """What a strategy, policy, schedule or problem adds to the options of every run. Raises
        UsageError.
        """
        known = {kind: part for part, kinds in PARTS.items() for kind in kinds}
        if topic not in known:
            hint = format_suggestion(topic, known) or f"use {', '.join(known)}"
            raise UsageError(f"there is no help on {topic!r}; {hint}, or --help-all")
        part = known[topic]
        chosen = f"--env ID --{part} {topic}"
        if part == "problem":
            chosen = "--objective MODULE:FUNCTION" if topic == "objective" else "--env ID"
        section = {f"what {topic} adds": tuple(own_settings(part, topic))}
        return self._format(f"es-master {chosen} [options]", "", section, "")

    def _format(
        self, usage: str, above: str, sections: Mapping[str, Sequence[str]], below: str
    ) -> str:
        """Help with the options of these names in sections."""
        named = {action.dest: action for action in reversed(self.actions)}
        formatter = self._get_formatter()
        formatter.add_usage(usage, [], [])
        formatter.add_text(above)
        for title, names in sections.items():
            formatter.start_section(title)
            formatter.add_arguments(named[name] for name in names)
            formatter.end_section()
        formatter.add_text(below)
        return formatter.format_help()


class _Help(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, _: object, topic: object, flag: str | None = None
    ) -> None:
        assert isinstance(parser, _MasterParser)
        text = parser.format_help_of(topic) if isinstance(topic, str) else None
        with suppress(OSError):  # no reader
            print(text or parser.format_everyday_help(), end="")
        parser.exit()


def make_parser(own: Mapping[str, Setting] | None = None) -> _MasterParser:
    """Its namespace has only the options that were given. own: settings of the user's strategy"""
    adders = {
        name: len(own_settings(part, name))
        for part in ("strategy", "policy")
        for name in PARTS[part]
    }
    lines = [
        f"  --help {name:<18} {count} option{'s' * (count > 1)}" for name, count in adders.items()
    ]
    parser = _MasterParser(
        "es-master",
        DESCRIPTION,
        "--help-all",
        usage="es-master --env ID [options]",
        epilog="\n".join([OWN_HELP, *lines, "", EPILOG]),
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: _MasterHelpFormatter(prog, max_help_position=30),
        add_help=False,
    )
    _add_launch_options(parser.add_argument_group("launch"))
    control = parser.add_argument_group("control of a run, from any host that can reach its Redis")
    add_options(control, CONTROL_OPTIONS, set={"action": "append"})
    groups: dict[str, argparse._ArgumentGroup] = {}
    for one in {**every_setting(), **(own or {})}.values():
        title = one.group or OWN
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_setting(groups[title], one)
    parser._action_groups.remove(groups[OWN])  # only --help NAME shows it
    return parser


class _MasterHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps description and epilog as written, and wraps help texts to 60 to 120 columns."""

    def __init__(self, prog: str, max_help_position: int = 30) -> None:
        super().__init__(prog, max_help_position=max_help_position)
        self._width = max(60, min(self._width, 120))

    def _split_lines(self, text: str, width: int) -> list[str]:
        # argparse would break a flag such as --max-steps at its dashes.
        return textwrap.wrap(text, width, break_on_hyphens=False)


def _add_launch_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-h",
        "--help",
        action=_Help,
        nargs="?",
        metavar="NAME",
        help="show the everyday options and exit; with a NAME (pgpe, mlp, async), what it adds",
    )
    add("--help-all", action="help", help="show the options of every run and exit")
    add_version(group)
    add_options(group, f"{SERVER_OPTIONS}{PASSWORD_FILE_OPTION.format(', readable only by you')}")
    add_options(group, PLACE_OPTIONS)
    add_runs_folder(group)
    can = ", ".join(every_setting()[name].flag for name in resumable())
    add_options(
        group,
        START_OPTIONS.format(resumable=can, recipes=", ".join(recipe_names())),
        listen={"nargs": "?", "const": ""},
        track={"action": "append"},
        hook={"action": "append"},
        tensorboard={"dest": "track", "action": "append_const", "const": "tensorboard"},
    )


#: Options with their help, as ``add_options`` reads them.
SERVER_OPTIONS = """
--redis-url URL
    address of Redis or Valkey, redis://HOST:PORT; other users of this host can see it in the
    process list, so put a password in RQ_REDIS_URL [default: that of an existing run, RQ_REDIS_URL,
    REDIS_URL, or "private" for a private server]"""
PLACE_OPTIONS = """
--insecure
    suppress warnings about a passwordless or unencrypted Redis
--workers N
    local worker processes to start [default: one per core with a private server, none with
    --redis-url]
--queue NAME
    RQ queue of the workers [default: default]
--run ID
    name of the new run: at most 40 letters, digits, '-', '_' and '.' [default: made from
    environment and time]
--run-dir PATH
    folder for the run's checkpoints and logs [default: RUN in --runs-dir]
"""
START_OPTIONS = """
--shared
    let the group of the run's folder read and write it: folders 2770, files 0660; the private
    server stays accessible only to you [default: only you, 0700 and 0600]
--resume RUN
    continue a run or study where it stopped, by its name, its folder or a file in it; only
    {resumable} can change
--standby RUN
    wait while a master on another host leads the run, and continue the run when that master is gone
--trust
    import the modules that the folder of --resume, --standby or --replay names, or the --config
    file; their code runs on this machine [default: only those that flags or ES_QUEUE_ALLOW name]
--seeds LIST
    train one run per seed over the same workers, such as 1-5 or 1,4,7; prints the mean, the
    interquartile mean and their 95 %% interval
--warm-start PATH
    begin with the policy of a checkpoint or run folder, or with the bundled policy pretrained:ENV;
    it may have a smaller network or fewer observations
--listen HOST:PORT
    open the private server to other hosts, with a new password [default: only this user on this
    host; without a value: all addresses, a free port]
--config FILE
    TOML file of settings, named as these options; a flag overrides it
--recipe NAME
    named published settings, overridden by flags and the --config file: {recipes}; none starts
    from plain defaults, without the environment's own recipe
--noise-dir PATH
    folder of the noise table, shared by all processes of this host [default: ES_QUEUE_NOISE_DIR,
    then the user's cache]
--video-every N
    film the unperturbed policy every N generations, into the run's folder videos/ (pip install
    'es-queue[video]') [default: no films]
--track NAME
    write settings, figures and the result for tensorboard, wandb or mlflow, into the run's folder
    of that name; separate several with commas (pip install 'es-queue[NAME]')
--hook module:Class
    call the methods of a class that extends es_queue.Hook at the run's start, generations,
    evaluations and end; can be given several times
--tensorboard
    the same as --track tensorboard
--quiet
    print only warnings, errors and the summary
--json
    print one JSON line per generation
"""
CONTROL_OPTIONS = f"""
--attach RUN
    the run that --set changes; to watch a run, use es-status RUN --watch
--set NAME=VALUE
    with --attach: change a setting from the next generation on; repeatable
    ({", ".join(changeable())})
--at N
    with --set: change it from generation N on
--stop RUN
    stop a run; --resume continues it
--pause RUN
    pause a run: its workers finish their blocks, then wait or serve other runs
--continue RUN
    continue a paused run
--purge RUN
    remove all of a run's data from Redis, if no master leads it; asks first
--yes
    with --purge: do not ask
--replay RUN
    compute a run's parameters again from its log, without episodes, and compare the digests
"""


def _add_setting(group: argparse._ArgumentGroup, one: Setting) -> None:
    default = "required, unless there is an objective"
    if one.name != "env":
        default = f"default: {one.shown()}"
    about = [
        f"one of {', '.join(one.words)}" if one.words else "",
        "" if one.unit in UNIT_METAVARS else one.unit,
        default,
    ]
    # A percent sign is argparse's own in a help text.
    text = f"{setting_text(one)} [{'; '.join(filter(None, about))}]".replace("%", "%%")
    if one.kind == "bool":
        group.add_argument(one.flag, action=argparse.BooleanOptionalAction, help=text)
        return
    metavar = one.metavar or UNIT_METAVARS.get(one.unit) or {"int": "N", "float": "X"}.get(one.kind)
    action = "append" if one.name in ("env_arg", "wrapper") else "store"
    group.add_argument(one.flag, metavar=metavar or "NAME", action=action, help=text)


def setting_text(one: Setting) -> str:
    """The sentence of ``--help``, with the strategies or policies that have the setting unless all
    have it.
    """
    users = users_of(one.name)
    if not users or set(users) == {*POLICIES}:
        return one.text
    if one.name != "optimizer":
        return f"{one.text} ({', '.join(users)})"
    choices = (f"{user}: {', '.join(STRATEGIES[user].optimizers)}" for user in users)
    return f"{one.text} ({'; '.join(choices)})"


@cache
def launch_names() -> frozenset[str]:
    """The flags that are not settings, by the names of their values."""
    words = (action.option_strings[-1] for action in make_parser().actions)
    names = {word.removeprefix("--").replace("-", "_") for word in words}
    negations = {f"no_{name}" for name in every_setting()}
    return frozenset(names - {*every_setting(), *negations})
