"""The policy of an objective: it outputs its whole vector, whatever it observes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import BoundPolicy, Policy
from es_queue.policies.layers.initial_weights import draw_unlayered
from es_queue.user_code import describe_error, load_function


class ConstantPolicy(Policy):
    """outputs = the flat vector itself."""

    def __init__(self, size: int) -> None:
        self.observation_size = 1
        self.outputs = size
        self.size = size

    @property
    def description(self) -> tuple[object, ...]:
        return "vector", self.size

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]: zeros for auto and zero, standard normal numbers for normal."""
        drawn = draw_unlayered(self.size, seed, init, "a vector has no layers")
        return drawn.astype(np.float32)

    def bind(self, parameters: Floats) -> BoundPolicy:
        rows = self.checked(parameters)
        return BoundPolicy(len(rows), lambda _: rows[0].copy(), lambda _: rows.copy())


# --- an objective's function and first vector


def load_objective(path: str) -> Callable[..., Any]:
    """The function that ``module:function`` names. Raises EnvironmentFailure in one sentence."""
    return load_function("objective", path, EnvironmentFailure)


def initial_vector(request: EnvironmentRequest) -> Floats:
    """The function's ``initial``, else zeros; float32 [parameters]. Raises EnvironmentFailure if it
    does not fit.
    """
    initial = getattr(load_objective(request.id), "initial", None)
    if initial is None:
        return np.zeros(request.parameters, np.float32)
    try:
        vector = np.array(initial, np.float32)
    except (TypeError, ValueError) as error:
        raise EnvironmentFailure(
            f"the initial vector of {request.id} is not an array of numbers: "
            f"{describe_error(error)}"
        ) from None
    if vector.shape != (request.parameters,) or not np.isfinite(vector).all():
        raise EnvironmentFailure(
            f"the initial vector of {request.id} has the shape {list(vector.shape)} or numbers "
            f"that are not finite: it must have {request.parameters} finite numbers"
        )
    return vector
