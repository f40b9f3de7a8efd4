"""From an id to Gymnasium's registered spec: old ids, users' modules, and a helpful word on unknown ones."""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from es_queue.config import AUTO, NONE
from es_queue.environments import atari_ids
from es_queue.environments.atari import ENTRY_POINT, PRESETS, settings_of
from es_queue.environments.request import EnvironmentRequest
from es_queue.errors import EnvironmentFailure, EsQueueError, UsageError

WALKER_V3 = "gymnasium.envs.box2d.bipedal_walker:BipedalWalker"
WALKER_V2 = "es_queue.environments.walker_v2:BipedalWalkerV2"
_LANDER = "gymnasium.envs.box2d.lunar_lander:LunarLander"

#: id -> entry point, its arguments, step limit, reward threshold: Gymnasium's own ids of before.
OLD_IDS: dict[str, tuple[str, dict[str, Any], int, float]] = {
    "BipedalWalker-v2": (WALKER_V2, {}, 1600, 300.0),
    "BipedalWalkerHardcore-v2": (WALKER_V2, {"hardcore": True}, 2000, 300.0),
    "LunarLander-v2": (_LANDER, {}, 1000, 200.0),
    "LunarLanderContinuous-v2": (_LANDER, {"continuous": True}, 1000, 200.0),
}

#: Where an environment lives -> what to install for it.
_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "toy_text": "toy-text", "classic_control": "classic-control"}

#: Arguments of gymnasium.make that the world sets itself.
_RESERVED = ("id", "max_episode_steps", "disable_env_checker", "render_mode")


@dataclass(frozen=True)
class Entry:
    """A found environment: its spec, all the arguments for its class, the user's module where there is one."""

    spec: EnvSpec
    arguments: dict[str, Any]
    module: str | None

    @property
    def id(self) -> str:
        return f"{self.module}:{self.spec.id}" if self.module else self.spec.id

    @property
    def entry_point(self) -> str:
        return self.spec.entry_point if isinstance(self.spec.entry_point, str) else ""


def register_old_ids() -> None:
    """Make the old ids known to ``gymnasium.make``, without its warning that they are out of date."""
    for name, (entry_point, arguments, limit, threshold) in OLD_IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name, entry_point, kwargs=arguments, max_episode_steps=limit, reward_threshold=threshold
            )
        warnings.filterwarnings(
            "ignore", rf".*The environment {name} is out of date", category=DeprecationWarning
        )


def find(request: EnvironmentRequest) -> Entry:
    """Look the requested id up, after importing the user's module if the id names one.

    Raises EnvironmentFailure for an unknown id or a module that cannot be imported.
    """
    module, _, name = request.id.rpartition(":")
    if module in ("", "ale_py") and is_atari(name):
        return atari_entry(name, request)
    if request.preprocessing not in (AUTO, NONE):
        raise UsageError(f"preprocessing is {request.preprocessing}, but {request.id} is no Atari game that es-queue knows: leave it out")
    if module:
        _import(module, request.id)
    spec = _registered(name)
    if spec is None:
        raise EnvironmentFailure(_unknown(name))
    return Entry(spec, {**spec.kwargs, **own_arguments(request)}, module or None)


def own_arguments(request: EnvironmentRequest) -> dict[str, Any]:
    """The request's arguments. Raises UsageError for one that nobody may set."""
    for argument, _ in request.arguments:
        if argument in _RESERVED:
            raise UsageError(f"the environment argument {argument} cannot be given: es-queue sets it itself")
    return dict(request.arguments)


def is_atari(name: str) -> bool:
    """Whether the id names an Atari game, and nobody's own environment. Raises EnvironmentFailure without the emulator."""
    about, own = atari_ids.parse(name), gymnasium.registry.get(name)
    if about is None or (own is not None and not str(own.entry_point).startswith("ale_py")):
        return False
    _import_atari(name)
    return about.rom in importlib.import_module("ale_py.roms").get_all_rom_ids()


def atari_entry(name: str, request: EnvironmentRequest) -> Entry:
    """The game under the request's preprocessing, or as Gymnasium has it. Raises UsageError where they do not fit."""
    about, chosen = atari_ids.parse(name), request.preprocessing
    assert about is not None
    if chosen == AUTO:
        chosen = NONE if request.wrappers else "ram" if about.ram else "dqn"
    if chosen == NONE:
        kwargs = atari_ids.plain_arguments(about)
        return Entry(EnvSpec(name, "ale_py.env:AtariEnv", kwargs=kwargs), {**kwargs, **own_arguments(request)}, None)
    if about.ram and chosen != "ram":
        raise UsageError(f"preprocessing is {chosen}, but {name} observes the console's memory: use ram, or the id without -ram")
    own = {**PRESETS[chosen], "frameskip": about.frameskip, "repeat_action_probability": about.sticky, **own_arguments(request)}
    limit = settings_of(own).step_limit()
    return Entry(EnvSpec(name, ENTRY_POINT, kwargs={"rom": about.rom}, max_episode_steps=limit), {"rom": about.rom, **own}, None)


def _import(module: str, environment: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a program's module, once imported, may want to exit
        raise EnvironmentFailure(
            f"the module of the environment {environment} cannot be imported: {describe_error(error)}"
        ) from error


def _registered(name: str) -> EnvSpec | None:
    """The spec of ``name``, of its newest version where the name has none."""
    try:
        namespace, bare, version = parse_env_id(name)
    except gymnasium.error.Error:
        return None
    if namespace == "ALE":
        _import_atari(name)
    if version is None and name not in gymnasium.registry:
        name = get_env_id(namespace, bare, find_highest_version(namespace, bare))
    return gymnasium.registry.get(name)


def _import_atari(name: str) -> None:
    try:
        importlib.import_module("ale_py")
    except ImportError as error:
        raise EnvironmentFailure(
            f'{name} needs a package that is not installed: pip install "gymnasium[atari]"'
        ) from error


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, list(gymnasium.registry), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "give your own as module:Id-v0, where the module registers it"
    return f"there is no environment {name!r}: {hint}"


def missing_package(entry: Entry, error: Exception) -> str:
    """One sentence for an import that failed, with the command that installs what is missing."""
    extra = next((extra for part, extra in _EXTRAS.items() if f".{part}" in entry.entry_point), None)
    if extra is None or "gymnasium-robotics" in str(error):
        return f"{entry.id} cannot be imported: {describe_error(error)}"
    return f'{entry.id} needs a package that is not installed: pip install "gymnasium[{extra}]"'


def named_function(what: str, path: str, refusal: type[EsQueueError]) -> Callable[..., Any]:
    """The user's function that ``module:function`` names. Raises ``refusal`` in one sentence, which says ``what`` it was to be."""
    found = imported(f"{what} {path}", path, refusal)
    if not callable(found):
        raise refusal(f"the {what} {path} is no function")
    return found  # type: ignore[no-any-return]


def imported(what: str, path: str, refusal: type[EsQueueError]) -> Any:
    """What ``module:name`` names. Raises ``refusal`` in one sentence, which says ``what`` it was to be."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a program's module, once imported, may want to exit
        raise refusal(f"the {what} cannot be imported: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Type and text of an exception, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
