"""EnvPool's environments as VectorEnvironments: one call in C++ steps many episodes, each with its
own seed.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.environments import ENVPOOL
from es_queue.environments.interface import VectorEnvironment
from es_queue.errors import EnvironmentFailure, MissingPackage
from es_queue.numerics.arrays import Doubles, Floats, Mask
from es_queue.user_code import describe_error

#: Episodes of one pool. Each call has a price of its own, so more are faster: for BipedalWalker 64
#: by a tenth against 32, beyond that by little.
MAX_AT_ONCE = 64
#: With fewer, BipedalWalker's lean step takes less time than the pool's.
MIN_AT_ONCE = 12
#: The pool applies no limit: the rollout does. The largest that EnvPool takes.
_NO_LIMIT = 2**31 - 1


def is_installed() -> bool:
    """Whether EnvPool can be imported here; imports it, because a partial installation is
    useless.
    """
    if importlib.util.find_spec("envpool") is None:
        return False
    try:
        return hasattr(importlib.import_module("envpool"), "make")
    except Exception:  # whatever a broken installation raises
        return False


def load_envpool(environment_id: str) -> Any:
    """EnvPool's module. Raises EnvironmentFailure, in one sentence, if it cannot be imported."""
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


def has_task(environment_id: str, task: str) -> bool:
    """Whether EnvPool has ``task``. Raises EnvironmentFailure if there is no EnvPool to play
    ``environment_id``.
    """
    return task in load_envpool(environment_id).list_all_envs()


class EnvPoolVectorEnvironment:
    """Episodes of one EnvPool task. Each batch has a new pool, because EnvPool takes seeds only at
    creation.

    Do not step a slot whose episode is over: EnvPool would begin another episode there.
    """

    min_episodes = MIN_AT_ONCE
    max_episodes = MAX_AT_ONCE

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
        """Flat float32 observations, and the values that belong to them, for ``rows`` in ascending
        order.
        """
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
