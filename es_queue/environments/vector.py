"""Many episodes at once, each with its own seed: EnvPool, and Gymnasium's vectorised CartPole; and
the random stream of EnvPool's environments.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils.seeding import np_random
from numpy.typing import NDArray

from es_queue.backends import ENVPOOL
from es_queue.environments.interface import VectorEnvironment
from es_queue.errors import EnvironmentFailure, MissingPackage
from es_queue.numerics.arrays import Doubles, Floats, Mask
from es_queue.user_code import describe_error

# --- EnvPool: one call in C++ steps many episodes

#: The pool applies no limit: the rollout does. The largest that EnvPool takes.
_NO_LIMIT = 2**31 - 1


def is_installed() -> bool:
    """Whether EnvPool can be imported here; imports it: a partial installation is useless."""
    with suppress(EnvironmentFailure, MissingPackage):
        return hasattr(load_envpool("a run"), "make")
    return False


def load_envpool(environment_id: str) -> Any:
    """Raises EnvironmentFailure in one sentence if it cannot be imported."""
    if importlib.util.find_spec("envpool") is None:
        raise MissingPackage(
            f"{environment_id} runs on EnvPool, which is not installed here: {ENVPOOL.install}"
        )
    try:
        return importlib.import_module("envpool")
    except Exception as error:
        raise EnvironmentFailure(
            f"{environment_id} runs on EnvPool, which cannot be imported: "
            f"{describe_error(error)}: {ENVPOOL.install}"
        ) from error


class EnvPoolVectorEnvironment:
    """Episodes of one EnvPool task, in a new pool for each batch, because EnvPool takes seeds only
    at creation. It would begin another episode after one that is over.
    """

    #: With fewer, BipedalWalker's lean step takes less time than the pool's.
    min_episodes = 12
    #: For BipedalWalker, 64 are a tenth faster than 32, and more hardly help.
    max_episodes = 64

    def __init__(self, task: str) -> None:
        self._task, self._library = task, load_envpool(task)
        self._pool: Any = None
        self._action_type: Any = None

    def reset(self, seeds: Sequence[int]) -> Floats:
        self.close()
        # For some tasks EnvPool describes spaces that Gymnasium warns of; nothing here uses them.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pool = self._library.make(
                self._task,
                "gymnasium",
                num_envs=len(seeds),
                num_threads=1,
                env_seed=[int(seed) for seed in seeds],
                max_episode_steps=_NO_LIMIT,
            )
            self._action_type = self._pool.spec.action_array_spec["action"].dtype
            observations, about = self._pool.reset()
        (first,) = self._flat(observations, about, np.arange(len(seeds), dtype=np.int32))
        return np.asarray(first, np.float32)

    def step(self, rows: NDArray[np.int32], actions: NDArray[Any]) -> tuple[Floats, Doubles, Mask]:
        observations, rewards, terminated, truncated, about = self._pool.step(
            actions.astype(self._action_type, copy=False), rows
        )
        seen, gained, over = self._flat(
            observations, about, rows, rewards.astype(np.float64), terminated | truncated
        )
        return seen, gained, over

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    @staticmethod
    def _flat(
        observations: NDArray[Any],
        about: Mapping[str, Any],
        rows: NDArray[np.int32],
        *more: NDArray[Any],
    ) -> tuple[Any, ...]:
        """Flat float32 observations, and their values, for ``rows`` in ascending order."""
        seen = observations.reshape(len(observations), -1).astype(np.float32, copy=False)
        order = about["env_id"]
        if np.array_equal(order, rows):  # so it is in EnvPool's synchronous mode
            return seen, *more
        places = np.argsort(order, kind="stable")
        return tuple(array[places] for array in (seen, *more))


class UnbatchedEnvironment:
    """An Environment as a pool of one: slow, for the few episodes that are played one by one."""

    _ROW = np.zeros(1, np.int32)

    def __init__(self, envs: VectorEnvironment) -> None:
        self._envs = envs

    def reset(self, seed: int) -> Floats:
        first: Floats = self._envs.reset([seed])[0]
        return first

    def step(self, action: Any) -> tuple[Floats, float, bool]:
        observations, rewards, over = self._envs.step(self._ROW, np.asarray(action)[None])
        return observations[0], float(rewards[0]), bool(over[0])

    def close(self) -> None:
        self._envs.close()


# --- CartPole


class CartPoleVectorEnvironment:
    """CartPole's episodes, identical to the bit to those of the scalar environment. Gymnasium's own
    reset would draw all starts from one generator.

    arguments: of the environment's class, from CARTPOLE_ARGUMENTS
    """

    #: Episodes of equal length pay from six on, those of a bad policy from some thirty on.
    min_episodes = 16
    #: Beyond this only the parameters' memory grows.
    max_episodes = 512

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        physics: Any = CartPoleVectorEnv(**arguments)
        physics.action_space = _AnyActions()
        self._physics = physics
        self._state: Doubles = np.zeros((4, 0))

    def reset(self, seeds: Sequence[int]) -> Floats:
        # the scalar environment's first states
        starts = [np_random(int(seed))[0].uniform(-0.05, 0.05, 4) for seed in seeds]
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


class _AnyActions:
    """The vectorised step checks a fixed number of environments."""

    def contains(self, actions: object) -> bool:
        return True


# --- EnvPool's random stream

_WORD = 2**32
#: Words drawn ahead: a normal episode takes about 610, so one draw serves it.
_BLOCK = 768


class Mt19937:
    """``std::mt19937(seed)``: the doubles and integers of C++ code built with GCC's library, for a
    seed below 2**32. NumPy's RandomState has the same generator and seeding, and its stream is
    frozen (NEP 19).
    """

    def __init__(self, seed: int) -> None:
        self._source = np.random.RandomState(0)
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Begin again with another seed: fifty times cheaper than a new object."""
        self._source.seed(seed)
        self._drawn = np.zeros(0, np.uint64)
        self._next = 0
        self._draw_ahead()

    def _draw_ahead(self) -> None:
        """Draw more words behind those that are left, and the fraction from each word and the one
        after it.
        """
        drawn = np.frombuffer(self._source.bytes(4 * _BLOCK), "<u4").astype(np.uint64)
        self._drawn = drawn = np.concatenate([self._drawn[self._next :], drawn])
        # Rounded to 53 bits, it may reach 1.0, from which the C++ library steps back.
        fractions = (drawn[:-1] + (drawn[1:] << np.uint64(32))) / 2.0**64
        self._fractions: list[float] = np.minimum(fractions, 1.0 - 2.0**-53).tolist()
        self._next = 0

    def skip(self, words: int) -> None:
        while words > len(self._drawn) - self._next:
            words -= len(self._drawn) - self._next
            self._next = len(self._drawn)
            self._draw_ahead()
        self._next += words

    def next_word(self) -> int:
        """The next 32 bits, as ``std::mt19937::operator()``."""
        if self._next == len(self._drawn):
            self._draw_ahead()
        self._next += 1
        return int(self._drawn[self._next - 1])

    def uniform(self, low: float, high: float) -> float:
        """``std::uniform_real_distribution<double>``: two words per draw, the low one first."""
        if self._next >= len(self._fractions):
            self._draw_ahead()
        self._next += 2
        return self._fractions[self._next - 2] * (high - low) + low

    def integer(self, low: int, high: int) -> int:
        """``std::uniform_int_distribution<int>``: both ends included, Lemire's method (GCC 11)."""
        count = high - low + 1
        product = self.next_word() * count
        if product % _WORD < count:
            threshold = (_WORD - count) % count
            while product % _WORD < threshold:
                product = self.next_word() * count
        return low + product // _WORD
