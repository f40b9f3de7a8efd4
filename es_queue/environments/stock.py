"""Gymnasium's own and users' environments: any id that ``gymnasium.make`` accepts, and the
behaviours by which novelty search compares episodes (Lehman and Stanley 2011).
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray

from es_queue.backends import GYM, STOCK
from es_queue.config.settings import AUTO
from es_queue.environments.atari import ENTRY_POINT as ATARI
from es_queue.environments.interface import (
    ActionSpec,
    Environment,
    EnvironmentRequest,
    EnvironmentSpec,
    ObservationPart,
    Path,
    flatten,
    make_encoder,
    path_suffix,
)
from es_queue.environments.registry import (
    MARVIN,
    WALKER_V2,
    WALKER_V3,
    GymEnvironment,
    RegisteredEnvironment,
    format_missing_package,
)
from es_queue.errors import EnvironmentFailure, MissingPackage, UsageError
from es_queue.numerics.arrays import Floats
from es_queue.protocol.messages import MAX_BEHAVIOUR_NUMBERS
from es_queue.user_code import describe_error, load_attribute, load_function

Measure = Callable[[GymEnvironment], Any]

# --- behaviours: a few numbers of an episode, read at its end

LAST, POSITION, RAM = "last-observation", "final-position", "ram"
FEET = "feet-contact"
WALKERS = (WALKER_V2, WALKER_V3, MARVIN)
#: Numbers of a walker's observation that are 1 if a leg touches the ground, else 0.
CONTACTS = (8, 13)
#: MuJoCo's environments whose body moves on; its place is the first two numbers of its pose.
LOCOMOTION = tuple(
    f"gymnasium.envs.mujoco.{name}"
    for name in ("ant", "half_cheetah", "hopper", "humanoid", "swimmer", "walker2d")
)


def resolve_behaviour(entry: RegisteredEnvironment, request: EnvironmentRequest) -> str:
    """Never "auto"; empty if the strategy compares none."""
    if request.behaviour != AUTO:
        return request.behaviour
    if entry.entry_point in WALKERS or entry.entry_point.startswith(LOCOMOTION):
        return POSITION
    return RAM if entry.entry_point == ATARI else LAST


def is_read_inside(name: str) -> bool:
    """Whether it must be read inside the environment, because observations lack it."""
    return name not in ("", LAST)


class ContactShares:
    """A walker whose behaviour is the share of steps in which each leg touches the ground [2]."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._steps, self._contacts = 0, [0.0, 0.0]

    def reset(self, seed: int) -> Floats:
        self._steps, self._contacts = 0, [0.0, 0.0]
        return self._environment.reset(seed)

    def step(self, action: Any) -> tuple[Floats, float, bool]:
        observation, reward, over = self._environment.step(action)
        self._steps += 1
        for leg, place in enumerate(CONTACTS):
            self._contacts[leg] += float(observation[place])
        return observation, reward, over

    def behaviour(self) -> Floats:
        return np.array([count / max(1, self._steps) for count in self._contacts], np.float32)

    def close(self) -> None:
        self._environment.close()


def validate_contacts(entry: RegisteredEnvironment, request: EnvironmentRequest) -> None:
    """Raises UsageError for feet-contact of anything but a walker with its own observations."""
    if entry.entry_point not in WALKERS or request.wrappers:
        raise UsageError(
            f"behaviour is {FEET}, which is known only for BipedalWalker and Marvin without "
            f"wrappers, not for {request.id}: use module:function"
        )


def final_position(environment: GymEnvironment) -> Any:
    """First two coordinates of BipedalWalker's hull or of a MuJoCo body."""
    body = environment.unwrapped
    hull, data = getattr(body, "hull", None), getattr(body, "data", None)
    if hull is not None:
        return hull.position.x, hull.position.y
    if data is None or len(getattr(data, "qpos", ())) < 2:
        raise EnvironmentFailure(
            f"final-position is not known for {type(body).__name__}: use the behaviour "
            "last-observation, or module:function"
        )
    return data.qpos[:2]


def memory(environment: GymEnvironment) -> Any:
    console = getattr(environment.unwrapped, "ale", None)
    if console is None:
        raise EnvironmentFailure(
            f"{type(environment.unwrapped).__name__} is not an Atari game and has no ram: use "
            "the behaviour last-observation, or module:function"
        )
    return console.getRAM()


def behaviour_vector(values: Any) -> Floats:
    """Float32 [b]. Raises EnvironmentFailure for an invalid or too long behaviour."""
    try:
        descriptor: Floats = np.array(values, np.float32).ravel()
    except (TypeError, ValueError):
        raise EnvironmentFailure("the behaviour is not an array of numbers") from None
    validate_length(len(descriptor))
    if not np.isfinite(descriptor).all():
        raise EnvironmentFailure("the behaviour contains numbers that are not finite")
    return descriptor


def validate_length(numbers: int) -> None:
    """Raises EnvironmentFailure for a behaviour too long for a result."""
    if not 0 < numbers <= MAX_BEHAVIOUR_NUMBERS:
        raise EnvironmentFailure(
            f"the behaviour has {numbers} numbers, but must have 1 to {MAX_BEHAVIOUR_NUMBERS}: "
            "use module:function to select the relevant ones"
        )


# --- spaces


def observation_parts(
    space: spaces.Space[Any], environment_id: str, path: Path = ()
) -> tuple[ObservationPart, ...]:
    """Box and MultiBinary are flattened in C order; Discrete and each part of MultiDiscrete become
    one-hot. Raises EnvironmentFailure for any other space, and for a name that is not text.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return (ObservationPart(path, math.prod(space.shape)),)
    if isinstance(space, spaces.Discrete):
        return (ObservationPart(path, int(space.n), (int(space.n),), (int(space.start),)),)
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = (tuple(array.reshape(-1).tolist()) for array in (space.nvec, space.start))
        return (ObservationPart(path, sum(sizes), sizes, starts),)
    if isinstance(space, spaces.Dict | spaces.Tuple) and space.spaces:
        inner: Any = space.spaces
        found: list[ObservationPart] = []
        for key, part in inner.items() if isinstance(inner, Mapping) else enumerate(inner):
            if isinstance(inner, Mapping) and not (isinstance(key, str) and key.isprintable()):
                raise EnvironmentFailure(
                    f"the observations of {environment_id} have a part named {key!r}; use "
                    "printable text"
                )
            found += observation_parts(part, environment_id, (*path, key))
        return tuple(found)
    raise EnvironmentFailure(
        f"the observations{path_suffix(path)} of {environment_id} are a {type(space).__name__}; "
        "es-queue supports Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them "
        "(your own wrapper can convert it to one of these)"
    )


def action_spec(space: spaces.Space[Any], environment_id: str) -> ActionSpec:
    """Raises EnvironmentFailure for an unsupported space."""
    if isinstance(space, spaces.Box):
        low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
        return ActionSpec("box", shape=space.shape, low=low, high=high)
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", sizes=(int(space.n),), starts=(int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = (tuple(map(int, array.reshape(-1))) for array in (space.nvec, space.start))
        return ActionSpec("multidiscrete", shape=space.nvec.shape, sizes=sizes, starts=starts)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec(
            "multibinary", shape=space.shape, sizes=(int(np.prod(space.shape)),), starts=(0,)
        )
    raise EnvironmentFailure(
        f"the actions of {environment_id} are a {type(space).__name__}; es-queue supports Box, "
        "Discrete, MultiDiscrete and MultiBinary"
    )


# --- the environment

#: Modules and classes that keep nothing from one episode to the next (held by a test).
CLEAN_MODULES = (
    "gymnasium.envs.classic_control.",
    "gymnasium.envs.toy_text.",
    "gymnasium.envs.box2d.lunar_lander",
    "gymnasium.envs.mujoco.",
    "es_queue.environments.rendered_walker.MarvinEnv",
    "es_queue.environments.atari",
)

#: The largest reward of one step, for environments whose rewards can never be positive.
HIGHEST_REWARDS = {"Pendulum-v1": 0.0, "MountainCar-v0": -1.0, "Acrobot-v1": 0.0}


class StockEnvironment:
    """A Gymnasium environment as es-queue's; made again for each episode unless it is known to
    reset cleanly. Raises EnvironmentFailure or UsageError if it cannot be made.
    """

    def __init__(
        self,
        entry: RegisteredEnvironment,
        request: EnvironmentRequest,
        render_mode: str | None = None,
    ) -> None:
        self._entry, self._request, self._render_mode = entry, request, render_mode
        self._environment = make_environment(entry, request, render_mode)
        for name in ("observation_space", "action_space"):
            if getattr(self._environment, name, None) is None:
                raise EnvironmentFailure(
                    f"{entry.id} has no {name}: set it to one of gymnasium.spaces in __init__"
                )
        self._was_reset = False
        self._info: Any = {}
        made = type(self._environment.unwrapped)
        # Atari's wrappers of images remember nothing.
        wrapped = entry.spec.additional_wrappers and entry.entry_point != ATARI
        #: Whether one object plays many episodes that do not depend on each other.
        self.resets_cleanly = not (entry.module or request.wrappers or wrapped) and (
            f"{made.__module__}.{made.__qualname__}".startswith(CLEAN_MODULES)
        )
        name, inside = resolve_behaviour(entry, request), {POSITION: final_position, RAM: memory}
        self._measure: Measure | None = None
        if is_read_inside(name) and name != FEET:
            self._measure = inside.get(name) or load_function("behaviour", name, UsageError)
        space, actions = self._environment.observation_space, self._environment.action_space
        parts = observation_parts(space, entry.id)
        is_array = not (parts[0].path or parts[0].choices)
        self._encode = flatten if is_array else make_encoder(parts)
        is_rounded = isinstance(actions, spaces.Box) and actions.dtype.kind != "f"
        self._rounded = actions.dtype if is_rounded else None
        shape = space.shape if isinstance(space, spaces.Box) else ()
        self.spec = EnvironmentSpec(
            id=entry.id,
            observation_size=sum(part.size for part in parts),
            action=action_spec(actions, entry.id),
            step_limit=entry.spec.max_episode_steps,
            reward_threshold=entry.reward_threshold,
            highest_reward=self._highest_reward(),
            backend=GYM.name if request.backend == GYM.name else STOCK.name,
            note=entry.note,
            observation_shape=shape if len(shape) > 1 else (),
            observation=() if is_array else parts,
        )

    def _highest_reward(self) -> float | None:
        """The upper end of the declared ``reward_range``, or the known one."""
        declared = getattr(self._environment, "reward_range", None)
        if declared is not None and np.isfinite(declared[1]):
            return float(declared[1])
        changed = self._entry.module or self._request.wrappers or self._request.arguments
        return None if changed else HIGHEST_REWARDS.get(self._entry.spec.id)

    def reset(self, seed: int) -> Floats:
        if self._was_reset and not self.resets_cleanly:
            self._environment.close()
            self._environment = make_environment(self._entry, self._request, self._render_mode)
        self._was_reset = True
        outcome: Any = self._environment.reset(seed=seed)
        if not isinstance(outcome, tuple) or [type(one) for one in outcome[1:]] != [dict]:
            raise EnvironmentFailure(
                f"reset returned {_shown(outcome)}, but must return (observation, info), with a "
                "dict as info"
            )
        self._info = outcome[1]
        return self._encode(outcome[0])

    def step(self, action: Any) -> tuple[Floats, float, bool]:
        if self._rounded is not None:  # a box of integers: the nearest ones
            action = np.rint(action).astype(self._rounded)
        outcome = self._environment.step(action)
        try:
            observation, reward, terminated, truncated, self._info = outcome
        except (TypeError, ValueError):
            raise EnvironmentFailure(
                f"step returned {_shown(outcome)}, but must return five values: observation, "
                "reward, terminated, truncated, info"
            ) from None
        try:
            gained = float(reward)
        except (TypeError, ValueError):
            raise EnvironmentFailure(
                f"the reward of a step is {_shown(reward)}, but must be one number: return "
                "float(reward)"
            ) from None
        if not math.isfinite(gained):
            raise EnvironmentFailure(
                f"the reward of a step is {gained}: an environment must keep its numbers finite"
            )
        return self._encode(observation), gained, bool(terminated or truncated)

    def info(self, names: Sequence[str]) -> Floats:
        """float32 [k] of the newest step's info; NaN for what it lacks, or is no number."""
        about = self._info if isinstance(self._info, Mapping) else {}
        values = np.full(len(names), np.nan, np.float32)
        for place, name in enumerate(names):
            with suppress(TypeError, ValueError, OverflowError):
                values[place] = about.get(name, np.nan)
        return values

    def lives(self) -> int:
        """Lives left in the episode, 0 if they are not counted."""
        console = getattr(self._environment.unwrapped, "ale", None)
        return 0 if console is None else int(console.lives())

    def behaviour(self) -> Floats:
        assert self._measure is not None, "no behaviour was requested"
        return behaviour_vector(self._measure(self._environment))

    @property
    def fps(self) -> float:
        """Frames per second by the environment's clock; 30 if it has none."""
        return float(self._environment.metadata.get("render_fps") or 30)

    def render(self) -> NDArray[np.uint8] | None:
        frame = self._environment.render()
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        self._environment.close()


def _shown(value: Any) -> str:
    """Its type, or the number of its values."""
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {list(shape)}" if shape is not None else "")


def make_environment(
    entry: RegisteredEnvironment, request: EnvironmentRequest, render_mode: str | None
) -> GymEnvironment:
    """``gymnasium.make`` without a step limit and without checkers, then the request's wrappers."""
    wrappers = []
    for path in request.wrappers:
        if not all(path.partition(":")):
            raise UsageError(f"the wrapper {path!r} is not of the form module:Class")
        wrappers.append(load_attribute(f"wrapper {path!r}", path, UsageError))
        if not callable(wrappers[-1]):
            raise UsageError(f"the wrapper {path!r} is not a class")
    try:
        if request.backend == GYM.name:
            # start-up: few runs use the old gym
            from es_queue.environments.old_gym import make_gym_environment

            return make_gym_environment(entry, wrappers, render_mode)
        if "gymnasium.envs.mujoco." in entry.entry_point:
            # Keep MuJoCo's warnings from the terminal and from MUJOCO_LOG.TXT in the current
            # folder. The handler is a C function: an exception in it (by a signal's handler)
            # would end the process.
            with suppress(ImportError):  # making the environment says what to install
                importlib.import_module("mujoco").set_mju_user_warning(operator.not_)
        environment = _make_gymnasium(entry, render_mode)
        for wrapper in wrappers:
            environment = wrapper(environment)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingPackage(format_missing_package(entry, error)) from error
    except UsageError:
        raise
    except Exception as error:
        trouble = "cannot be created"
        if isinstance(error, TypeError) and request.arguments:
            given = ", ".join(f"{name}={value!r}" for name, value in request.arguments)
            trouble = f"does not accept the arguments {given}"
        cure = "; --env-arg NAME=VALUE gives an argument" if " missing " in str(error) else ""
        raise EnvironmentFailure(f"{entry.id} {trouble}: {describe_error(error)}{cure}") from error
    if not isinstance(environment, gymnasium.Env):
        raise EnvironmentFailure(f"the wrappers of {entry.id} do not return a gymnasium.Env")
    return environment


def _make_gymnasium(entry: RegisteredEnvironment, render_mode: str | None) -> GymEnvironment:
    # Given a spec in place of an id, Gymnasium has no opinion on whether the id is out of date.
    spec = replace(entry.spec, order_enforce=False, kwargs=entry.arguments)
    options: dict[str, Any] = {"max_episode_steps": -1, "disable_env_checker": True}
    if render_mode is None:
        environment = gymnasium.make(spec, **options)
        if environment.unwrapped.spec is not None:  # wrappers may read the limit
            environment.unwrapped.spec.max_episode_steps = spec.max_episode_steps
        return environment
    point: Any = spec.entry_point
    creator = load_env_creator(point) if isinstance(point, str) else point
    metadata = getattr(creator, "metadata", None)
    modes = (isinstance(metadata, dict) and metadata.get("render_modes")) or []
    if render_mode in modes:
        return _follow_robot(gymnasium.make(spec, render_mode=render_mode, **options))
    if render_mode == "human" and "rgb_array" in modes:
        rendered = _follow_robot(gymnasium.make(spec, render_mode="rgb_array", **options))
        return gymnasium.wrappers.HumanRendering(rendered)
    raise UsageError(
        f"{entry.id} cannot draw {render_mode!r}; it offers {', '.join(modes) or 'nothing'}"
    )


def _follow_robot(environment: GymEnvironment) -> GymEnvironment:
    """MuJoCo's default camera stays where the robot begins, so a film would soon show an empty
    floor: take the model's camera "track", unless another one was chosen.
    """
    renderer = getattr(environment.unwrapped, "mujoco_renderer", None)
    if renderer is not None and renderer.camera_id == -1:
        mujoco: Any = importlib.import_module("mujoco")
        renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    return environment
