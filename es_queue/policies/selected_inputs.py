"""``--observe``: a policy that receives only some numbers of the observation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Floats
from es_queue.policies.base import BoundPolicy, Policy


class SelectedInputsPolicy(Policy):
    """``policy`` on some numbers of an observation; the flat vector is that of ``policy``.

    policy:  made for that number of inputs
    whole:   the same kind of policy, for the whole observation
    numbers: indices into the observation, in the order in which ``policy`` receives them
    """

    numbers: NDArray[np.intp]

    def __init__(self, policy: Policy, whole: Policy, numbers: tuple[int, ...]) -> None:
        self.policy = policy
        self.whole = whole
        self.numbers = np.array(numbers)
        self.observation_size = whole.observation_size
        self.outputs = policy.outputs
        self.size = policy.size
        self.memory_size = policy.memory_size

    def initial(self, seed: int, init: str) -> Floats:
        return self.policy.initial(seed, init)

    def bind(self, parameters: Floats) -> BoundPolicy:
        bound = self.policy.bind(parameters)

        def act_one(observation: Floats) -> Floats:
            return bound.act_one(observation[self.numbers])

        def act_many(observations: Floats) -> Floats:
            return bound.act_many(np.take(observations, self.numbers, axis=1))

        return BoundPolicy(bound.count, act_one, act_many, bound.memory)

    def for_whole(self, parameters: Floats) -> Floats:
        """float32[whole.size], with which ``whole`` acts like this policy with ``parameters``
        [size], up to rounding.
        """
        weights = parameters[: len(self.numbers) * self.whole.row_length]
        first = np.zeros((self.observation_size, self.whole.row_length), np.float32)
        first[self.numbers] = weights.reshape(len(self.numbers), self.whole.row_length)
        return np.concatenate([first.ravel(), parameters[len(weights) :]])
