"""The command line of es-master: RunConfig's fields as flags, the options of a launch, and TOML files of settings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from es_queue.config import RunConfig, default_of, option_fields
from es_queue.errors import UsageError
from es_queue.pretrained import FOLDER, path_of
from es_queue.recipes import named_recipe, recipe_for
from es_queue.settings import from_values, unknown_option
from es_queue.validation import checked_value, number_or_text
from master.asks import Ask, asked, checked_run
from master.films import refuse_without_film
from master.flags import COMMAND_LINE, LAUNCH_NAMES, RESUMABLE, dashed, joined, make_parser, refuse_unknown
from master.named_redis import named_url
from master.tensorboard import refuse_without_writer

__all__ = ["RESUMABLE", "Launch", "checked_changes", "parse", "read_settings", "recipe_values", "resolve"]

#: A recipe's search settings are one tuned set: they are left out whole when one of these is chosen otherwise.
TUNED_TOGETHER = ("strategy", "policy", "optimizer")
#: What a recipe says of its own policy; another one may have no use for it.
OF_THE_POLICY = ("hidden", "activation", "batch_norm", "init")
#: More local processes than any one host serves well; it catches a slip of the keyboard.
MOST_WORKERS = 4096
MOST_GENERATIONS = 2**31
#: Before an environment's id: the trained policy that comes with the package.
PRETRAINED = "pretrained:"


@dataclass(frozen=True)
class Launch:
    """How this process takes part in a run; nothing here changes a number of the run.

    redis_url: None starts a private server; kept out of repr, for it holds the password where there is one
    shared:    the run's folder is for the user's group too
    insecure:  no warnings of a Redis that others reach or read
    warnings:  what is to be said at once of how the password was given
    told:      what each key of an experiment file of evolution-strategies-starter became
    workers:   local worker processes, None for the command's own choice
    run:       id of a new run, None to derive one; ``resume`` is the id of an existing one
    standby:   resume it only when its master is gone
    seeds:     one run for each of them instead of one run
    warm_start: checkpoint or run folder whose policy a new run begins with
    listen:    address of the private server for other hosts, "" for the command's own choice, None for none
    video_every: generations between two films of the unperturbed policy, 0 for none
    tensorboard: write event files beside the run
    ask:       what is wanted of a run that another process drives; then nothing is trained here
    """

    redis_url: str | None = field(default=None, repr=False)
    workers: int | None = None
    queue: str = "default"
    run: str | None = None
    run_dir: Path | None = None
    resume: str | None = None
    standby: bool = False
    noise_dir: Path | None = None
    quiet: bool = False
    json: bool = False
    seeds: tuple[int, ...] = ()
    warm_start: Path | None = None
    listen: str | None = None
    video_every: int = 0
    tensorboard: bool = False
    ask: Ask | None = None
    insecure: bool = False
    shared: bool = False
    warnings: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


LAUNCHED = tuple(one.name for one in fields(Launch) if one.name not in ("ask", "warnings", "told"))


def parse(argv: list[str] | None) -> tuple[dict[str, Any], Launch]:
    """The settings that were given, by flag, else by --config, else by --recipe, each checked; and the launch.

    ``argv`` is the command line without the program's name, None for this process's own. Raises UsageError
    for all that cannot be; --help and --version print and end the process.
    """
    given, unknown = make_parser().parse_known_args(joined(argv))
    refuse_unknown(unknown)
    named = vars(given)
    path, recipe = named.pop("config", None), named.pop("recipe", None)
    ask = asked(named)
    launch = replace(_launch({name: named.pop(name) for name in (*LAUNCHED, "redis_password_file") if name in named}), ask=ask)
    values = {} if recipe is None else named_recipe(recipe)
    if path is not None:
        settings, told = read_file(Path(path))
        values, launch = values | settings, replace(launch, told=told)
    for name, value in named.items():
        values[name] = _checked_flag(option_fields()[name], value)
    if launch.resume is not None:
        _refuse_changes(values)
    _refuse_beside(launch, values)
    return values, launch


def _refuse_beside(launch: Launch, values: dict[str, Any]) -> None:
    """What cannot stand beside --stop and the like, beside --seeds, and --listen beside a server that is named."""
    if launch.ask is not None:
        trained = [name for name in ("run", "resume", "workers", "seeds", "warm_start", "listen") if getattr(launch, name) not in (None, ())]
        if trained or values:
            raise UsageError(f"--{launch.ask.verb} asks something of a run and trains nothing, so leave --{dashed([*trained, *values][0])} out")
    if launch.standby and launch.redis_url is None:
        raise UsageError("--standby waits beside a run on a shared Redis, for a private server ends with its master's host: give --redis-url")
    if launch.seeds and "seed" in values:
        raise UsageError("--seed and --seeds are both given: --seeds names all seeds, so leave --seed out")
    if launch.listen is not None and launch.redis_url is not None:
        raise UsageError("--listen opens the private server, but a Redis is named (by --redis-url, RQ_REDIS_URL or REDIS_URL), so none is started: leave one out")


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
    """What the recipe for ``values["env"]`` adds to ``values``; its search settings only if its method is kept, and no shape of another policy."""
    recipe = recipe_for(str(values.get("env", "")))
    if values.get("policy", recipe.get("policy")) != recipe.get("policy"):
        recipe = {name: value for name, value in recipe.items() if name not in OF_THE_POLICY}
    tuned = all(values[name] == recipe.get(name, default_of(name)) for name in TUNED_TOGETHER if name in values)
    groups = {name: one.metadata["group"] for name, one in option_fields().items()}
    return {name: value for name, value in recipe.items() if name not in values and (tuned or groups.get(name) != "search")}


def read_file(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Checked settings of a --config file, and what is to be said of them. Raises UsageError."""
    if path.suffix == ".json":
        from master.starter_file import read_starter

        return read_starter(path)
    return read_settings(path), ()


def read_settings(path: Path) -> dict[str, Any]:
    """Checked settings from a flat TOML file, its names with dashes or underscores. Raises UsageError."""
    values: dict[str, Any] = {}
    for key, value in _toml(path).items():
        name = key.replace("-", "_")
        if name in values:
            raise UsageError(f"{path} has {name} twice, with a dash and with an underscore: keep one")
        if name in LAUNCH_NAMES:
            raise UsageError(f"{path} has {key!r}, which only the command line takes: use --{name.replace('_', '-')}")
        if name not in option_fields():
            raise UsageError(unknown_option(key, str(path)))
        values[name] = checked_value(option_fields()[name], value, str(path))
    return values


def _toml(path: Path) -> dict[str, Any]:
    from master.starter_file import read_given

    text = ""
    try:
        text = read_given(path).decode("utf-8")
        return tomllib.loads(text)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text, as TOML must be") from None
    except (ValueError, RecursionError) as error:  # ValueError also covers a number of thousands of digits
        reason, _, place = str(error).partition(" (at ")
        found = re.search(r"line (\d+)", place)
        line = found.group(1) if found else max(1, len(text.splitlines()))
        raise UsageError(f"{path}, line {line}: not TOML: {reason}") from None


def _checked_flag(one: Field[Any], value: Any) -> Any:
    numeric = one.type in ("int", "float") and isinstance(value, str)
    return checked_value(one, number_or_text(value) if numeric else value, COMMAND_LINE)


def _launch(given: dict[str, Any]) -> Launch:
    for name, value in given.items():
        if value == "" and name != "listen":
            raise UsageError(f"{name} is empty in {COMMAND_LINE}: leave --{dashed(name)} out or give it a value")
    for name in ("run", "resume", "standby"):
        if name in given:
            checked_run(name, given[name])
    if "standby" in given:
        if "resume" in given:
            raise UsageError(f"{COMMAND_LINE} has --standby and --resume: --standby resumes the run when its turn comes, so leave --resume out")
        given |= {"resume": given["standby"], "standby": True}
    if "workers" in given:
        given["workers"] = whole("workers", given["workers"], MOST_WORKERS)
    if "video_every" in given:
        given["video_every"] = whole("video_every", given["video_every"], MOST_GENERATIONS)
        refuse_without_film(given["video_every"])
    refuse_without_writer(given.get("tensorboard", False))
    if "seeds" in given:
        from master.study.seeds import parse_seeds

        given["seeds"] = parse_seeds(given["seeds"])
    for name in ("run_dir", "noise_dir"):
        if name in given:
            given[name] = Path(given[name])
    if "warm_start" in given:
        given["warm_start"] = beginning(given["warm_start"])
    for name in ("run", "seeds", "warm_start"):
        if name in given and "resume" in given:
            raise UsageError(f"{COMMAND_LINE} has --{dashed(name)} and --resume, which goes on with a run as it is: leave --{dashed(name)} out")
    warned: list[str] = []
    url = named_url(given.get("redis_url"), given.pop("redis_password_file", None), warned.append)
    return Launch(**{**given, "redis_url": url, "warnings": tuple(warned)})


def beginning(text: str) -> Path:
    """What --warm-start names: a path, or ``pretrained:ENV``. Raises UsageError where no policy of ENV comes along that could be gone on with."""
    if not text.startswith(PRETRAINED):
        return Path(text)
    path = path_of(text.removeprefix(PRETRAINED))
    if path.suffix != ".npz":
        raise UsageError(f"warm-start is {text!r}, which comes along as a list of seeds: es-play --pretrained plays it, no run can begin with it")
    return path


def beginning_again(path: Path) -> str:
    """The word for which ``beginning`` gives this path, on any host where the path's policy comes along."""
    if path.parent == FOLDER:
        return f"{PRETRAINED}{path.stem}"
    return f"./{path}" if str(path).startswith(PRETRAINED) else str(path)


def whole(name: str, text: str, most: int) -> int:
    """Raises UsageError for what is no whole number from 0 to ``most``."""
    number = number_or_text(text)
    if not isinstance(number, int) or not 0 <= number <= most:
        raise UsageError(f"{name} is {text!r} in {COMMAND_LINE}: use a whole number from 0 to {most}")
    return number


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
