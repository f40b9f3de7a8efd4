"""Marvin-v0: the body of the 42 schools' robot in BipedalWalker's world, the same through every
door.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from es_queue.environments.factory import open_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.walker import LeanMarvin, LeanWalker

MARVIN = EnvironmentRequest("Marvin-v0")
IDLE = np.zeros(4, np.float32)


def drawn_actions(seed: int, count: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (count, 4)).astype(np.float32)


def body_of(world: LeanWalker) -> Any:
    world.reset(0)
    return world.body


def corners(body: Any) -> NDArray[np.float64]:
    """All corners of a Box2D body, in pixels from its origin."""
    return 30 * np.array([corner for fixture in body.fixtures for corner in fixture.shape.vertices])


def test_his_masses_are_those_of_the_original() -> None:
    body = body_of(LeanMarvin())
    trunk = body.hull.massData
    assert trunk.mass == pytest.approx(2.456, abs=0.01)
    assert (trunk.center.x, trunk.center.y) == (
        pytest.approx(0.10, abs=0.01),
        pytest.approx(0.89, abs=0.01),
    )
    assert trunk.I - trunk.mass * trunk.center.lengthSquared == pytest.approx(2.73, abs=0.02)
    assert [part.mass for part in body.legs] == [
        pytest.approx(mass, abs=0.002) for mass in (0.270, 0.320) * 2
    ]
    assert trunk.mass + sum(part.mass for part in body.legs) == pytest.approx(3.64, abs=0.01)


def test_who_does_nothing_falls_as_the_original_does() -> None:
    world, lengths, returns = LeanMarvin(), [], []
    for seed in range(20):
        world.reset(seed)
        rewards = [world.step(IDLE)[1]]
        while rewards[-1] != -100.0:
            rewards.append(world.step(IDLE)[1])
        lengths.append(len(rewards))
        returns.append(sum(rewards))
    assert min(lengths) >= 118 and max(lengths) <= 136, "the original: 118 to 136 in ten episodes"
    assert 122 <= np.mean(lengths) <= 132
    assert min(returns) >= -112.0 and max(returns) <= -111.0, (
        "the original: -111.5, give or take 0.5"
    )


def test_lean_stock_and_gymnasium_play_one_episode_to_the_bit() -> None:
    lean, stock = (
        open_environment(MARVIN),
        open_environment(EnvironmentRequest("Marvin-v0", backend="stock")),
    )
    registered = gymnasium.make("Marvin-v0")
    for seed in (3, 2**31 - 1, 3):
        seen = [lean.reset(seed), stock.reset(seed), registered.reset(seed=seed)[0]]
        assert all(np.array_equal(a, b) for a, b in pairwise(seen))
        for action in drawn_actions(seed, 400):
            (a, gained, over), (b, reward, ended) = lean.step(action), stock.step(action)
            c, paid, terminated, truncated, _ = registered.step(action)
            assert np.array_equal(a, b) and np.array_equal(a, c) and not truncated
            assert (gained, over) == (reward, ended) == (paid, terminated)
            if over:
                break
        assert over, "who waves at random falls"
