"""An environment object from Python code, named so that workers can make it too."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from types import FunctionType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from es_queue.errors import UsageError

GymEnvironment = gymnasium.Env[Any, Any]
GivenEnvironment = str | type[GymEnvironment] | Callable[[], GymEnvironment] | GymEnvironment
#: These packages register their environments wherever they are installed.
REGISTERED_BY = ("gymnasium", "es_queue", "ale_py")


def environment_settings(env: GivenEnvironment) -> dict[str, Any]:
    """The settings of a run on ``env``: an id, a class, a function that makes an environment, or an
    environment.

    Raises UsageError with the reason if workers could not make the same environment.
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
