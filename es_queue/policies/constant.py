"""The policy of an objective: it outputs its whole vector, whatever it observes."""

from __future__ import annotations

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.policies.base import BoundPolicy, Policy
from es_queue.policies.layers.initial_weights import draw_unlayered


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
