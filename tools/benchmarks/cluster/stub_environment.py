"""An environment that has the sizes of another and plays nothing: the master needs no more of it
than its spaces.

``--env tools.benchmarks.cluster.stub_environment:Sized-v0 --env-arg observation=24
--env-arg action=4``
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

ID = "tools.benchmarks.cluster.stub_environment:Sized-v0"
STEP_LIMIT = 1_000_000


class Sized(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Every episode ends after one step."""

    def __init__(self, observation: int = 24, action: int = 4) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observation,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (action,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape or (), np.float32), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return np.zeros(self.observation_space.shape or (), np.float32), 0.0, True, False, {}


gymnasium.register("Sized-v0", lambda **sizes: Sized(**sizes), max_episode_steps=STEP_LIMIT)
