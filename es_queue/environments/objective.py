"""The user's objective as an Environment: an episode is one step, its reward the function's value.

``function(vector, seed)``, or ``function(vector)``, takes a float32 array and an int and returns a
number, or ``(number, behaviour)``; larger is better. All its randomness must come from the seed.
Its optional attribute ``initial`` is the first vector.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from es_queue.environments.interface import ActionSpec, EnvironmentRequest, EnvironmentSpec
from es_queue.environments.stock import behaviour_vector
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.arrays import Floats
from es_queue.policies.custom import initial_vector, load_objective
from es_queue.user_code import describe_error


class ObjectiveEnvironment:
    """An Environment whose action is the vector. Raises EnvironmentFailure if the function
    cannot be imported.
    """

    def __init__(self, request: EnvironmentRequest) -> None:
        self._function = load_objective(request.id)
        self._takes_seed = takes_seed(request.id, self._function)
        self._seed = 0
        self._id = request.id
        self._behaviour: Any = None

    def reset(self, seed: int) -> Floats:
        self._seed = seed
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> tuple[Floats, float, bool]:
        arguments = (action, self._seed) if self._takes_seed else (action,)
        result = self._function(*arguments)
        if isinstance(result, tuple) and len(result) != 2:
            raise EnvironmentFailure(
                f"{self._id} returned {len(result)} values, but must return a number, or "
                "(number, behaviour)"
            )
        value, self._behaviour = result if isinstance(result, tuple) else (result, None)
        try:
            return np.zeros(1, np.float32), float(value), True
        except (TypeError, ValueError):
            raise TypeError(
                f"it returned {type(value).__name__}, but must return a number"
            ) from None

    def behaviour(self) -> Floats:
        """What the last call returned. Raises EnvironmentFailure if that was only a number."""
        if self._behaviour is None:
            raise EnvironmentFailure(
                f"the objective {self._id} returns only a number, but the strategy compares "
                "behaviours: return (number, behaviour)"
            )
        return behaviour_vector(self._behaviour)

    def close(self) -> None: ...


def takes_seed(path: str, function: Callable[..., Any]) -> bool:
    """Whether an objective has a second argument. Raises EnvironmentFailure for other arguments."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C may not show its arguments
        return True
    for arguments in ((None, 0), (None,)):
        with suppress(TypeError):
            signature.bind(*arguments)
            return len(arguments) == 2
    raise EnvironmentFailure(
        f"the objective {path} has the arguments {signature}: it must take (vector, seed), or "
        "(vector)"
    )


def describe_objective(request: EnvironmentRequest) -> EnvironmentSpec:
    """Call the function once with its first vector. Raises EnvironmentFailure if it fails."""
    vector = initial_vector(request)
    env = ObjectiveEnvironment(request)
    try:
        env.reset(0)
        value = env.step(vector)[1]
        size = len(env.behaviour()) if request.behaviour else 0
    except EnvironmentFailure:
        raise
    except Exception as error:  # whatever a user's function raises
        raise EnvironmentFailure(
            f"{request.id} fails with its first vector: {describe_error(error)}"
        ) from error
    if not np.isfinite(value):
        raise EnvironmentFailure(
            f"{request.id} returned {value} for its first vector: it must return a finite number"
        )
    action = ActionSpec("vector", shape=(request.parameters,))
    spec = EnvironmentSpec(
        id=request.id,
        observation_size=1,
        action=action,
        step_limit=1,
        reward_threshold=None,
        highest_reward=None,
        backend="stock",
    )
    return replace(spec, behaviour=request.behaviour, behaviour_size=size)
