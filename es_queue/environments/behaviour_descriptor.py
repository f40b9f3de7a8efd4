"""Behaviour descriptors: the few numbers by which novelty search compares episodes (Lehman and
Stanley 2011).

The descriptor is chosen before the first episode, and read once per episode, at its end.
``ContactShares`` counts while it is played.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from es_queue.config.run_config import AUTO
from es_queue.environments.interface import Environment, EnvironmentRequest
from es_queue.environments.registry import MARVIN, WALKER_V2, WALKER_V3, RegisteredEnvironment
from es_queue.errors import EnvironmentFailure, UsageError
from es_queue.numerics.arrays import Floats
from es_queue.protocol.messages import MAX_BEHAVIOUR_NUMBERS
from es_queue.user_code import load_function

GymEnvironment = gymnasium.Env[Any, Any]
Measure = Callable[[GymEnvironment], Any]

LAST, POSITION, RAM = "last-observation", "final-position", "ram"
FEET = "feet-contact"
WALKERS = (WALKER_V2, WALKER_V3, MARVIN)
#: Numbers of a walker's observation that are 1 if a leg touches the ground, else 0.
CONTACTS = (8, 13)
#: Of Gymnasium's MuJoCo environments those whose body gets somewhere; it is in the first two
#: numbers of its pose.
LOCOMOTION = tuple(
    f"gymnasium.envs.mujoco.{name}"
    for name in ("ant", "half_cheetah", "hopper", "humanoid", "swimmer", "walker2d")
)
ATARI = "es_queue.environments.atari:"


def resolve_behaviour(entry: RegisteredEnvironment, request: EnvironmentRequest) -> str:
    """The request's behaviour, never "auto"; empty if the strategy compares none."""
    if request.behaviour != AUTO:
        return request.behaviour
    if entry.entry_point in WALKERS or entry.entry_point.startswith(LOCOMOTION):
        return POSITION
    return RAM if entry.entry_point.startswith(ATARI) else LAST


def is_read_inside(name: str) -> bool:
    """Whether the behaviour must be read inside the environment, because observations lack it."""
    return name not in ("", LAST)


def make_measure(name: str) -> Measure | None:
    """The function that reads a behaviour inside an environment, or None. Raises UsageError for a
    function that cannot be imported.
    """
    if not is_read_inside(name) or name == FEET:
        return None
    inside = {POSITION: final_position, RAM: memory}
    return inside.get(name) or load_function("behaviour", name, UsageError)


class ContactShares:
    """A walker's Environment whose behaviour is the share of the episode's steps in which each leg
    touches the ground, float32 [2].
    """

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
    """The memory of the Atari console, 128 bytes."""
    console = getattr(environment.unwrapped, "ale", None)
    if console is None:
        raise EnvironmentFailure(
            f"{type(environment.unwrapped).__name__} is not an Atari game and has no ram: use "
            "the behaviour last-observation, or module:function"
        )
    return console.getRAM()


def behaviour_vector(values: Any) -> Floats:
    """A behaviour as float32 [b]. Raises EnvironmentFailure for an invalid or too long one."""
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
