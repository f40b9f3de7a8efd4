"""A user's own policy in numpy, which defines how one individual acts (docs/policies.md)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.policies.base import BoundPolicy, Policy, bind_rows
from es_queue.policies.layers.initial_weights import draw_unlayered


class NumpyPolicy(Policy):
    """Extend it and define ``act``. ``__init__`` takes (observation_size, outputs) and declares the
    number of parameters.

    If it also takes ``observation_shape``, it gets the shape of the observation array, () for a
    vector.
    """

    def __init__(
        self, observation_size: int, outputs: int, size: int, memory_size: int = 0
    ) -> None:
        self.observation_size, self.outputs, self.size = observation_size, outputs, size
        self.memory_size = memory_size

    @property
    def description(self) -> tuple[object, ...]:
        kind = type(self)
        return (
            f"{kind.__module__}:{kind.__qualname__}",
            self.observation_size,
            self.outputs,
            self.size,
            self.memory_size,
        )

    @abstractmethod
    def act(self, parameters: Floats, observation: Floats, memory: Floats) -> Any:
        """The raw outputs [outputs] of one individual.

        parameters:  float32[size], read-only
        observation: float32[observation_size]
        memory:      float32[memory_size], zeros when an episode begins; write to it what the next
        step needs
        """

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size], the first parameters, which depend only on (seed, init). auto: zeros;
        normal: standard normal numbers / √size.
        """
        drawn = draw_unlayered(self.size, seed, init, "your own policy has no known layers")
        first: Floats = (drawn / np.sqrt(self.size)).astype(np.float32)
        return first

    def bind(self, parameters: Floats) -> BoundPolicy:
        rows = self.checked(parameters).view()
        rows.flags.writeable = False
        memory = np.zeros((len(rows), self.memory_size), np.float32)

        def act_row(row: int, observation: Floats) -> Floats:
            return self._outputs(self.act(rows[row], observation, memory[row]))

        return bind_rows(act_row, memory)

    def _outputs(self, raw: Any) -> Floats:
        """A new float32[outputs]. Raises ValueError for another length."""
        flat = np.array(raw, np.float32).reshape(-1)
        if len(flat) != self.outputs:
            raise ValueError(f"act returned {len(flat)} numbers, but must return {self.outputs}")
        return flat
