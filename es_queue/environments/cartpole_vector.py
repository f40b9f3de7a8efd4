"""Gymnasium's vectorised CartPole as a VectorEnvironment; each episode has its own seed.

Its reset and autoreset are not used: they draw all starts from one generator, so an episode would
depend on its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils.seeding import np_random
from numpy.typing import NDArray

from es_queue.numerics.arrays import Doubles, Floats, Mask

#: Bounds of the uniform distribution from which the scalar environment draws each number of its
#: first state.
_START = 0.05


class CartPoleVectorEnvironment:
    """CartPole's episodes, identical to the bit to those of the scalar environment.

    arguments: of the environment's class, from CARTPOLE_ARGUMENTS
    """

    #: Episodes of equal length pay from six on, those of a policy that soon lets the pole fall from
    #: some thirty on.
    min_episodes = 16
    #: A step's price hardly depends on how many take it; beyond this it is the parameters' memory
    #: that grows.
    max_episodes = 512

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._physics = _physics(arguments)
        self._state: Doubles = np.zeros((4, 0))

    def reset(self, seeds: Sequence[int]) -> Floats:
        starts = [np_random(int(seed))[0].uniform(-_START, _START, 4) for seed in seeds]
        self._rows = np.arange(len(seeds), dtype=np.int32)
        self._state = np.ascontiguousarray(np.transpose(starts))
        return self._observations()

    def step(self, rows: NDArray[np.int32], actions: NDArray[Any]) -> tuple[Floats, Doubles, Mask]:
        if len(rows) != len(self._rows):
            # take keeps C order, which an index in brackets would not: numpy's loops round strided
            # numbers as they like.
            self._state = self._state.take(np.searchsorted(self._rows, rows), axis=1)
            self._rows = rows
        physics, count = self._physics, len(rows)
        physics.state = self._state
        physics.steps, physics.prev_done = np.zeros(count, np.int32), np.zeros(count, np.bool_)
        _, rewards, over, _, _ = physics.step(actions)
        self._state = physics.state
        # Adding zero makes the -0.0 of sutton_barto_reward the scalar environment's 0.0.
        return self._observations(), np.add(rewards, 0.0, dtype=np.float64), over

    def close(self) -> None:
        """Nothing to release."""

    def _observations(self) -> Floats:
        return self._state.T.astype(np.float32, order="C")


def _physics(arguments: Mapping[str, Any]) -> Any:
    physics = CartPoleVectorEnv(**arguments)
    physics.action_space = cast(Any, _AnyActions())
    return physics


class _AnyActions:
    """Accepts any actions, because the vectorised step checks a fixed number of environments."""

    def contains(self, actions: object) -> bool:
        return True
