"""The linear policy: one matrix, no bias (Mania, Guy and Recht 2018, arXiv:1803.07055)."""

from __future__ import annotations

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import (
    BoundPolicy,
    Policy,
    PolicyInputs,
    row_product,
    stacked_product,
)
from es_queue.policies.layers.initial_weights import draw_initial_weights


class LinearPolicy(Policy):
    """outputs = observation @ W. The flat vector is W, [observation_size, outputs] in C order."""

    kinds = ("linear",)

    @classmethod
    def make(cls, config: RunConfig, inputs: PolicyInputs) -> Policy:
        return cls(inputs.observation_size, inputs.outputs)

    def __init__(self, observation_size: int, outputs: int) -> None:
        self.observation_size = observation_size
        self.outputs = outputs
        self.size = observation_size * outputs
        self.row_length = outputs

    @property
    def description(self) -> tuple[object, ...]:
        return "linear", self.observation_size, self.outputs

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]; auto is zero. For others, the layer counts as the last (x 0.01)."""
        init = "zero" if init == "auto" else init
        shape = (self.observation_size, self.outputs)
        return draw_initial_weights([shape], 1.0, seed, init)[0].ravel()

    def bind(self, parameters: Floats) -> BoundPolicy:
        weights = self.checked(parameters).reshape(-1, self.observation_size, self.outputs)

        def act_many(observations: Floats) -> Floats:
            return stacked_product(observations, weights)

        return BoundPolicy(len(weights), row_product(weights[0]), act_many)
