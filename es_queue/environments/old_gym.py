"""Environments of the old gym 0.26.2 behind Gymnasium's interface, on current NumPy.

It accepts environments and wrappers whose ``step`` returns four values, and a ``reset`` without
seed or info.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from es_queue.backends import GYM
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.registry import (
    BUNDLED_IDS,
    MARVIN,
    WALKER_V2,
    RegisteredEnvironment,
    find_spec,
    format_unknown_id,
    import_user_module,
    validate_reserved_arguments,
)
from es_queue.errors import EnvironmentFailure, MissingPackage

#: Names that NumPy 2 has no more and that gym and environments of its time use.
_OLD_NAMES = {"bool8": np.bool_, "float_": np.float64, "Inf": np.inf}


def load_gym() -> Any:
    """The module ``gym``, without notice and warnings. Raises EnvironmentFailure without it."""
    with suppress(Exception):  # whatever is wrong with a notice
        importlib.import_module("gym_notices.notices").notices.clear()
    for name, meaning in _OLD_NAMES.items():
        if not hasattr(np, name):
            setattr(np, name, meaning)
    try:
        gym = importlib.import_module("gym")
    except ImportError as error:
        raise MissingPackage(
            f"the gym back end needs a package that is not installed: {GYM.install}"
        ) from error
    if not hasattr(getattr(gym, "envs", None), "registration") or not hasattr(
        gym.envs.registration, "find_highest_version"
    ):
        raise EnvironmentFailure(
            f"the gym back end does not support gym {getattr(gym, '__version__', '?')}: "
            f"{GYM.install}"
        )
    gym.logger.set_level(gym.logger.ERROR)  # its warnings are of its own age
    register()
    return gym


def find_gym_environment(request: EnvironmentRequest) -> RegisteredEnvironment:
    """gym's spec of the requested id as Gymnasium's. Raises EnvironmentFailure."""
    registration = load_gym().envs.registration
    module, _, name = request.id.rpartition(":")
    if module:
        import_user_module(module, request.id)
    old = find_spec(registration, name)
    if old is None:
        raise EnvironmentFailure(format_unknown_id(name, list(registration.registry)))
    validate_reserved_arguments(request)
    point = old.entry_point if isinstance(old.entry_point, str) else "gym"
    spec = EnvSpec(
        old.id,
        point,
        reward_threshold=old.reward_threshold,
        max_episode_steps=old.max_episode_steps,
    )
    return RegisteredEnvironment(spec, {**old.kwargs, **dict(request.arguments)}, module or None)


def make_gym_environment(
    entry: RegisteredEnvironment, wrappers: Sequence[Callable[..., Any]], render_mode: str | None
) -> gymnasium.Env[Any, Any]:
    """``gym.make`` without step limit and checkers, the request's wrappers, and the adapter."""
    gym = load_gym()
    if entry.entry_point.startswith("gym.") and entry.entry_point.endswith("LunarLander"):
        importlib.import_module("gym.envs.box2d.lunar_lander").np = _PythonFloatNumpy()  # type: ignore[attr-defined]
    spec = dataclasses.replace(
        gym.envs.registration.registry[entry.spec.id],
        max_episode_steps=None,
        order_enforce=False,
        autoreset=False,
        kwargs=entry.arguments,
    )
    drawing = {} if render_mode is None else {"render_mode": render_mode}

    def make(values: int | None) -> OldGymAdapter:
        environment = gym.make(spec, disable_env_checker=True, **drawing)
        if values is not None:
            environment = gym.wrappers.StepAPICompatibility(
                environment, output_truncation_bool=values == 5
            )
        for wrapper in wrappers:
            environment = wrapper(environment)
        return OldGymAdapter(environment, render_mode)

    return make(_probe_step_length(make) if wrappers else None)


def _probe_step_length(make: Callable[[int | None], OldGymAdapter]) -> int | None:
    """How many values the wrappers expect from an inner step, by trial; None if it is right."""
    probe = make(None)
    try:
        probe.reset(seed=0)
        probe.step(probe.action_space.sample())
    except ValueError as error:
        counts = [count for count in (4, 5) if f"expected {count}" in str(error)]
        return counts[0] if counts else None
    except Exception:  # what else is wrong shows when it is played
        return None
    finally:
        probe.close()
    return None


class _PythonFloatNumpy:
    """NumPy for gym's lander: Python floats in place of float32 numbers, which Box2D rejects."""

    def clip(self, value: Any, low: float, high: float) -> Any:
        return np.clip(value, low, high) if np.ndim(value) else float(np.clip(value, low, high))

    def sign(self, value: Any) -> Any:
        return np.sign(value) if np.ndim(value) else float(np.sign(value))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class OldGymAdapter(gymnasium.Env[Any, Any]):
    """One environment of gym, wrapped or not, with Gymnasium's interface."""

    def __init__(self, environment: Any, render_mode: str | None) -> None:
        if not all(
            hasattr(environment, name)
            for name in ("reset", "step", "action_space", "observation_space")
        ):
            raise TypeError("the wrappers do not return a gym environment")
        self.environment, self.render_mode = environment, render_mode
        self.observation_space = convert_space(environment.observation_space)
        self.action_space = convert_space(environment.action_space)
        self._unwrapped = environment.unwrapped
        self._accepts_seeds = all(_accepts_seed(level) for level in _levels(environment))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        outcome = (
            self.environment.reset(seed=seed)
            if self._accepts_seeds
            else self._reset_past_wrappers(seed)
        )
        if isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], dict):
            return outcome
        return outcome, {}

    def _reset_past_wrappers(self, seed: int | None) -> Any:
        """Pass the seed to the innermost ``reset``, or older ``seed``, past the wrappers."""
        innermost = self._unwrapped
        if not _accepts_seed(innermost):
            if callable(getattr(innermost, "seed", None)):
                innermost.seed(seed)
            return self.environment.reset()
        innermost.reset = functools.partial(innermost.reset, seed=seed)
        try:
            return self.environment.reset()
        finally:
            del innermost.reset

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        outcome = self.environment.step(action)
        if len(outcome) == 4:
            observation, reward, done, info = outcome
            return observation, reward, bool(done), False, info
        observation, reward, terminated, truncated, info = outcome
        return observation, reward, bool(terminated), bool(truncated), info

    def render(self) -> Any:
        return self.environment.render()

    def close(self) -> None:
        self.environment.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "environment":
            raise AttributeError(name)
        return getattr(self._unwrapped, name)


def _levels(environment: Any) -> list[Any]:
    levels = [environment]
    while levels[-1] is not environment.unwrapped and hasattr(levels[-1], "env"):
        levels.append(levels[-1].env)
    return levels


def _accepts_seed(level: Any) -> bool:
    parameters = inspect.signature(level.reset).parameters.values()
    return any(
        parameter.name == "seed" or parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in parameters
    )


def convert_space(space: Any) -> Any:
    """gym's space as Gymnasium's; an unsupported one is returned unchanged, to be refused later."""
    kind = type(space).__name__
    if kind == "Box":
        return spaces.Box(space.low, space.high, dtype=space.dtype)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.nvec))
    if kind == "MultiBinary":
        return spaces.MultiBinary(space.n)
    if kind not in ("Dict", "Tuple"):
        return space
    named = isinstance(space.spaces, Mapping)
    parts = [convert_space(part) for part in (space.spaces.values() if named else space.spaces)]
    if not all(isinstance(part, spaces.Space) for part in parts):
        return space
    return (
        spaces.Dict(list(zip(space.spaces, parts, strict=True))) if named else spaces.Tuple(parts)
    )


# --- es-queue's ids, for gym.make through the entry point group gym.envs


def register() -> None:
    """Without gym's checker, which NumPy 2 breaks. gym 0.26 has the old landers itself."""
    # optional: the old gym, which calls this function
    from gym.envs import registration

    for name, (entry_point, arguments, limit, threshold) in BUNDLED_IDS.items():
        if name in registration.registry or entry_point not in (MARVIN, WALKER_V2):
            continue
        registration.register(
            name,
            make_marvin if entry_point == MARVIN else make_walker_v2,
            reward_threshold=threshold,
            max_episode_steps=limit,
            disable_env_checker=True,
            kwargs=arguments,
        )


def make_walker_v2(**arguments: Any) -> Any:
    # optional: the old gym
    from gym.envs.box2d.bipedal_walker import BipedalWalker

    from es_queue.environments.rendered_walker import LidarV2Mixin

    return type("GymBipedalWalkerV2", (LidarV2Mixin, BipedalWalker), {})(**arguments)


def make_marvin(render_mode: str | None = None) -> Any:
    """MarvinEnv as gym's, with gym's spaces; the same seed gives the same episode."""
    # optional: the old gym, and Box2D
    import gym

    from es_queue.environments.rendered_walker import MarvinEnv

    marvin: Any = MarvinEnv(render_mode)

    class GymMarvin(gym.Env):  # type: ignore[misc]
        metadata = MarvinEnv.metadata
        observation_space = gym.spaces.Box(
            marvin.observation_space.low, marvin.observation_space.high, dtype=np.float32
        )
        action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        step, render, close = marvin.step, marvin.render, marvin.close
        hull = property(lambda self: marvin.hull)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return marvin.reset(seed=seed, options=options)

    env: Any = GymMarvin()
    env.render_mode = render_mode
    return env
