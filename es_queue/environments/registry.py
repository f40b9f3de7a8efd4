"""Finds Gymnasium's spec of an id, a user's module, class, function or environment object.

Importing this module registers Marvin-v0 and the old ids (``BipedalWalker-v2`` and others) with
Gymnasium.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import FunctionType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from es_queue.environments.atari import find_game, rom_ids
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EnvironmentFailure, MissingPackage, UsageError
from es_queue.text import format_suggestion, nearest_names
from es_queue.user_code import describe_error, module_trouble

BODIES = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
)
#: Never carried over to today's MuJoCo; Pusher is the arm that is left.
REMOVED = ("Striker", "Thrower")


def current_id(name: str) -> tuple[str, str]:
    """The id to play for ``name``, and a sentence if that differs. Raises EnvironmentFailure."""
    try:
        namespace, bare, version = parse_env_id(name)
    except gymnasium.error.Error:
        return name, ""
    if namespace is None and bare in REMOVED:
        raise EnvironmentFailure(
            f"{name} cannot be played: it needs mujoco-py, and has no version for current "
            f"MuJoCo; the nearest task is {_newest('Pusher')}"
        )
    if namespace is not None or bare not in BODIES or version is None:
        return name, ""
    newest = _newest(bare)
    if name == newest or version > (find_highest_version(None, bare) or 0):
        return name, ""
    # For ids that it has removed, Gymnasium registers a function that raises.
    playable = isinstance(getattr(gymnasium.registry.get(name), "entry_point", None), str)
    hint = f" (--env gymnasium:{name} plays the old version)" * playable
    return newest, f"{name} is an old version: this run uses the current one, {newest}{hint}"


def _newest(bare: str) -> str:
    return get_env_id(None, bare, find_highest_version(None, bare))


WALKER_V3 = "gymnasium.envs.box2d.bipedal_walker:BipedalWalker"
WALKER_V2 = "es_queue.environments.rendered_walker:BipedalWalkerV2"
MARVIN = "es_queue.environments.rendered_walker:MarvinEnv"
CARTPOLE = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
#: What the scalar CartPole and the vectorised one both take; neither has any other argument of its
#: physics.
CARTPOLE_ARGUMENTS = frozenset({"sutton_barto_reward"})
_LANDER = "gymnasium.envs.box2d.lunar_lander:LunarLander"

#: id -> entry point, its arguments, step limit, reward threshold: Gymnasium's own ids of before,
#: and our own.
BUNDLED_IDS: dict[str, tuple[str, dict[str, Any], int | None, float | None]] = {
    "BipedalWalker-v2": (WALKER_V2, {}, 1600, 300.0),
    "BipedalWalkerHardcore-v2": (WALKER_V2, {"hardcore": True}, 2000, 300.0),
    "LunarLander-v2": (_LANDER, {}, 1000, 200.0),
    "LunarLanderContinuous-v2": (_LANDER, {"continuous": True}, 1000, 200.0),
    "Marvin-v0": (MARVIN, {}, None, None),
}

#: A part of an entry point, and the package that it needs.
_PACKAGES = {
    "atari": "es-queue[atari]",
    "mujoco": "es-queue[mujoco]",
    "box2d": "gymnasium[box2d]",
    "rendered_walker": "gymnasium[box2d]",
    "toy_text": "gymnasium[toy-text]",
    "classic_control": "gymnasium[classic-control]",
}

#: Arguments of gymnasium.make that the world sets itself.
_RESERVED = ("id", "max_episode_steps", "disable_env_checker", "render_mode")


@dataclass(frozen=True)
class RegisteredEnvironment:
    """A found environment: its spec, all arguments for its class, the user's module, if any, and a
    sentence about it for the user.
    """

    spec: EnvSpec
    arguments: dict[str, Any]
    module: str | None
    note: str = ""

    @property
    def id(self) -> str:
        return f"{self.module}:{self.spec.id}" if self.module else self.spec.id

    @property
    def reward_threshold(self) -> float | None:
        threshold = self.spec.reward_threshold
        return None if threshold is None else float(threshold)

    @property
    def entry_point(self) -> str:
        return self.spec.entry_point if isinstance(self.spec.entry_point, str) else ""


def register_bundled_ids() -> None:
    """Register Marvin and the old ids with Gymnasium, without its warning about old versions."""
    for name, (entry_point, arguments, limit, threshold) in BUNDLED_IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point,
                kwargs=arguments,
                max_episode_steps=limit,
                reward_threshold=threshold,
            )
        warnings.filterwarnings(
            "ignore", rf".*The environment {name} is out of date", category=DeprecationWarning
        )


def find_environment(request: EnvironmentRequest) -> RegisteredEnvironment:
    """Look the requested id up, after importing the user's module. Raises EnvironmentFailure."""
    module, _, name = request.id.rpartition(":")
    validate_reserved_arguments(request)
    atari = find_game(request)
    if atari is not None:
        return RegisteredEnvironment(*atari, None)
    note = ""
    makers: dict[str, Any] = {}
    if module:
        import_user_module(module, request.id)
        makers = {
            own: thing
            for own, thing in vars(sys.modules[module]).items()
            if isinstance(thing, FunctionType)
            or (isinstance(thing, type) and issubclass(thing, gymnasium.Env))
        }
    else:
        name, note = current_id(name)
    if name.startswith("ALE/"):
        rom_ids(name)
    if name in makers and name not in gymnasium.registry:  # not CartPole-v1 for own:CartPole
        spec = EnvSpec(name, entry_point=f"{module}:{name}")
    else:
        spec = find_spec(gymnasium.envs.registration, name)
    if spec is None:
        gym = getattr(sys.modules.get("gym"), "envs", None)
        if name in getattr(getattr(gym, "registration", None), "registry", {}):
            raise EnvironmentFailure(
                f"Gymnasium does not know {name!r}, but the old gym does: use --backend gym"
            )
        if isinstance(getattr(sys.modules.get(module), name, None), type):
            raise EnvironmentFailure(
                f"{request.id} is a class that does not extend gymnasium.Env: give one that does, "
                "or a function that makes an environment"
            )
        raise EnvironmentFailure(format_unknown_id(name, [*makers, *gymnasium.registry], module))
    return RegisteredEnvironment(
        spec, {**spec.kwargs, **dict(request.arguments)}, module or None, note
    )


def import_user_module(module: str, environment_id: str) -> None:
    """Raises EnvironmentFailure, MissingPackage without such a module."""
    if trouble := module_trouble(module):
        raise EnvironmentFailure(f"the environment {environment_id}: {trouble}")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"the module {module} of the environment {environment_id} cannot be imported: "
            f"{describe_error(error)}; install it on this host, or start in the folder that "
            "holds it"
        ) from error
    except (Exception, SystemExit) as error:  # a program's module, once imported, may want to exit
        raise EnvironmentFailure(
            f"the module {module} of the environment {environment_id} cannot be imported: "
            f"{describe_error(error)}"
        ) from error


def find_spec(registration: Any, name: str) -> Any:
    """In Gymnasium's ``registration`` or the old gym's; the newest version if the name has none."""
    with suppress(Exception):  # each library's own errors for names that are none
        space, bare, version = registration.parse_env_id(name)
        if version is None and name not in registration.registry:
            newest = registration.find_highest_version(space, bare)
            name = registration.get_env_id(space, bare, newest)
    return registration.registry.get(name)


def validate_reserved_arguments(request: EnvironmentRequest) -> None:
    """Raises UsageError for an argument that users may not set."""
    for argument, _ in request.arguments:
        if argument in _RESERVED:
            raise UsageError(
                f"the environment argument {argument} is not allowed: es-queue sets it itself"
            )


def format_unknown_id(name: str, known: list[str], module: str = "") -> str:
    """The error for an id, or for a name of the user's ``module``."""
    bare, _, version = name.rpartition("-v")
    # Of each name that version, else the newest.
    ordered = sorted(known, key=lambda one: (one.endswith(f"-v{version}"), one))
    names = {one.rpartition("-v")[0]: one for one in ordered if "-v" in one}
    near = [known_id for known_id in known if known_id.endswith(f"/{name}")]  # ALE/Pong-v5
    near = near or [names[near_name] for near_name in nearest_names(bare, names)]
    hint = f"did you mean {' or '.join(near)}?" if near else format_suggestion(name, known)
    if module:
        hint = hint or "name a class or function of it, or an id that it registers"
        return f"the module {module} has no environment {name!r}: {hint}"
    if version == "5" and not near and "/" not in name:  # as all games of Atari
        hint = f"if it is an Atari game, use ALE/{name} (pip install 'es-queue[atari]')"
    hint = hint or "name your own as module:Class, or module:Id-v0 if the module registers it"
    return f"there is no environment {name!r}: {hint}"


def format_missing_package(entry: RegisteredEnvironment, error: Exception) -> str:
    """One sentence, with the command that installs what is missing."""
    known = [package for part, package in _PACKAGES.items() if f".{part}" in entry.entry_point]
    if not known or "gymnasium-robotics" in str(error):
        return f"{entry.id} cannot be imported: {describe_error(error)}"
    return f"{entry.id} needs a package that is not installed: pip install '{known[0]}'"


register_bundled_ids()


GymEnvironment = gymnasium.Env[Any, Any]
GivenEnvironment = str | type[GymEnvironment] | Callable[[], GymEnvironment] | GymEnvironment
#: These packages register their environments wherever they are installed.
REGISTERED_BY = ("gymnasium", "es_queue", "ale_py")


def environment_settings(env: GivenEnvironment) -> dict[str, Any]:
    """The settings of a run on ``env``: an id, a class, a function, or an environment. Raises
    UsageError with the reason if workers could not make the same environment.
    """
    if isinstance(env, str):
        if ":" not in env and (spec := gymnasium.registry.get(env)) is not None:
            _refuse_if_registered_here(spec)
        return {"env": env}
    if isinstance(env, gymnasium.Env):
        return _settings_of_registered(env) if env.spec is not None else _settings_of_object(env)
    if isinstance(env, EnvSpec):
        raise UsageError(f"env is a specification: give its id, {env.id!r}")
    if not isinstance(env, FunctionType | type):
        raise UsageError(
            f"env is an object of the class {type(env).__name__}, which workers cannot create: "
            "give an id, a class, or a function of a module"
        )
    if isinstance(env, type) and not issubclass(env, gymnasium.Env):
        raise UsageError(
            f"env is the class {env.__name__}, which does not extend gymnasium.Env: give a class "
            "that does, or a function that makes an environment"
        )
    return {"env": import_path(env)}


def import_path(thing: FunctionType | type) -> str:
    """``module:name`` of a class or function. Raises UsageError if other processes cannot import
    it.
    """
    module, name = thing.__module__, thing.__qualname__
    reason = ""
    if module == "__main__":
        reason = "is defined in the program or notebook itself: move it to a module"
    elif "." in name:
        reason = "is defined inside a function or class: move it to the top of its module"
    elif getattr(sys.modules.get(module), name, None) is not thing:
        reason = f"is not what {module} has by that name: give it a name in its module"
    if reason:
        raise UsageError(f"env is {name}, which workers cannot import, because it {reason}")
    return f"{module}:{name}"


def _settings_of_registered(env: GymEnvironment) -> dict[str, Any]:
    """The id, arguments and wrappers of an environment from gymnasium.make."""
    spec = env.spec
    assert spec is not None
    registered = gymnasium.registry.get(spec.id)
    if registered is None or spec.max_episode_steps != registered.max_episode_steps:
        raise UsageError(
            f"env is {spec.id} with {spec.max_episode_steps} steps, which differs from its "
            "registration: give its id, and step_limit and eval_step_limit in the config"
        )
    if any(wrapper.kwargs != {} for wrapper in spec.additional_wrappers):
        raise UsageError(
            f"env is {spec.id} in wrappers with arguments, which workers do not receive: give a "
            "function that makes it"
        )
    made_by = type(env.unwrapped).__module__
    if made_by == "__main__":
        _refuse_if_registered_here(spec)
    is_known = made_by.partition(".")[0] in REGISTERED_BY
    return {
        "env": spec.id if is_known else f"{made_by}:{spec.id}",
        "env_arg": _arguments(
            {
                name: value
                for name, value in spec.kwargs.items()
                if name not in registered.kwargs or value != registered.kwargs[name]
            }
        ),
        "wrapper": [wrapper.entry_point for wrapper in spec.additional_wrappers],
    }


def _refuse_if_registered_here(spec: EnvSpec) -> None:
    """Raises UsageError for an environment that no installed package registers by itself."""
    entry = spec.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    plugins = {plugin.module.partition(".")[0] for plugin in entry_points(group="gymnasium.envs")}
    if module.partition(".")[0] not in plugins.union(REGISTERED_BY):
        raise UsageError(
            f"env is {spec.id}, which workers cannot make, because only this program has "
            f"registered it: call gymnasium.register in a module, and give 'module:{spec.id}'"
        )


def _settings_of_object(env: GymEnvironment) -> dict[str, Any]:
    """The class, and the arguments that gymnasium.utils.EzPickle keeps."""
    kind = type(env)
    path = import_path(kind)
    signature = inspect.signature(kind)
    kept = vars(env)
    if "_ezpickle_kwargs" in kept:
        bound = signature.bind(*kept["_ezpickle_args"], **kept["_ezpickle_kwargs"])
        return {"env": path, "env_arg": _arguments(bound.arguments)}
    if signature.parameters.keys() - {"render_mode"}:
        raise UsageError(
            f"env is an object of {path}, which does not record its constructor's "
            "arguments: give the class, and env_arg in the config, or a function that makes it"
        )
    return {"env": path}


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "render_mode"}
