"""The policy of an objective: it outputs its whole vector, whatever it observes."""

from __future__ import annotations

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import BoundPolicy, Policy, single_only
from es_queue.policies.layers.initial_weights import DOMAIN, draw_normals


class ConstantPolicy(Policy):
    """outputs = the flat vector itself."""

    def __init__(self, size: int) -> None:
        self.observation_size = 1
        self.outputs = size
        self.size = size

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]: zeros for auto and zero, of the standard normal distribution for
        normal.
        """
        if init in ("auto", "zero"):
            return np.zeros(self.size, np.float32)
        if init != "normal":
            raise UsageError(
                f"init is {init}, but a vector has no layers: use auto, zero or normal"
            )
        return draw_normals(
            np.random.Philox(key=np.array([seed, DOMAIN], dtype=np.uint64)), self.size
        ).astype(np.float32)

    def bind(self, parameters: Floats) -> BoundPolicy:
        """See :meth:`Policy.bind`."""
        rows = self.checked(parameters)
        count = len(rows)
        return BoundPolicy(
            count,
            (lambda _: rows[0].copy()) if count == 1 else single_only(count),
            lambda _: rows.copy(),
        )
