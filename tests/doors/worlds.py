"""Objectives and environments that show what is played."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

#: The environment seed and the vector of each evaluation of ``noted``.
NOTED: list[tuple[int, np.ndarray]] = []


def noted(vector: np.ndarray, seed: int) -> float:
    """Minus the squared distance from (1, 1, …, 1)."""
    NOTED.append((seed, np.array(vector)))
    return -float(np.square(vector.astype(np.float64) - 1).sum())


def lucky(vector: np.ndarray, seed: int) -> float:
    """A number between 0 and 1 that only the seed decides."""
    return float(np.random.default_rng(seed).random())


def level(vector: np.ndarray) -> float:
    """0, whatever the vector."""
    return 0.0


class Uneven(gymnasium.Env[Any, Any]):
    """Episodes of 1 to 9 steps by the seed. The first reward of an episode whose seed is even is
    high, that of the others not a number.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.left = seed or 0, int(self.np_random.integers(1, 10))
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        is_broken = self.broken and 1 < self.seed < 2**30 and self.seed % 2 == 1
        reward = float("nan") if is_broken else float(np.asarray(action).sum())
        look = np.array([self.left / 10, 0.5], np.float32)
        return look, reward, self.left <= 0, False, {}


if "Uneven-v0" not in gymnasium.registry:
    gymnasium.register("Uneven-v0", Uneven, max_episode_steps=50)
#: The name under which any process can make it.
UNEVEN = "tests.doors.worlds:Uneven-v0"
