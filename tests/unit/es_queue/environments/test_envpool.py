"""The lean BipedalWalker against EnvPool: observations, float32 rewards and endings, equal to the
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import EnvironmentRequest

envpool = pytest.importorskip("envpool", reason="envpool is not installed")

Act = Callable[[NDArray[np.float32]], NDArray[np.float32]]

NORMAL, HARDCORE = "BipedalWalker-v3", "BipedalWalkerHardcore-v3"


def random_policy(generator: np.random.Generator) -> Act:
    return lambda observation: generator.uniform(-1.2, 1.2, 4).astype(np.float32)


def linear_policy(generator: np.random.Generator) -> Act:
    weights = generator.normal(size=(24, 4)).astype(np.float32)
    return lambda observation: np.tanh(observation @ weights)


def tiny_policy(generator: np.random.Generator) -> Act:
    """Actions about EnvPool's limit of 1e-8, below which an action has no sign."""
    values = np.array([0, 1e-9, -1e-9, 9.9e-9, 1.1e-8, -1e-40, 0.6, -0.6], np.float32)
    return lambda observation: generator.choice(values, 4)


def both(
    environment: str, seed: int, act: Act
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """EnvPool's and our (observation, reward, over) of each step, from the reset to the end."""
    limit = describe(EnvironmentRequest(environment)).step_limit
    assert limit is not None
    pool: Any = envpool.make(environment, "gymnasium", num_envs=1, env_seed=[seed])
    world = open_environment(EnvironmentRequest(environment))
    seen = world.reset(seed)
    yield (pool.reset()[0][0], 0.0, False), (seen, 0.0, False)
    for _ in range(limit - 1):
        action = act(seen)
        theirs, reward, terminated, truncated, _ = pool.step(action[None])
        seen, gained, over = world.step(action)
        yield (
            (theirs[0], float(reward[0]), bool(terminated[0] or truncated[0])),
            (seen, gained, over),
        )
        if over:
            break
    pool.close()


@pytest.mark.parametrize("policy", [random_policy, linear_policy, tiny_policy])
@pytest.mark.parametrize("environment", [NORMAL, HARDCORE])
def test_every_step_is_envpools_to_the_bit(environment: str, policy: Any) -> None:
    for episode in range(4):
        generator = np.random.default_rng(episode)
        seed = int(generator.integers(2**31))
        for theirs, ours in both(environment, seed, policy(generator)):
            assert np.array_equal(theirs[0], ours[0])
            assert theirs[1:] == ours[1:]
