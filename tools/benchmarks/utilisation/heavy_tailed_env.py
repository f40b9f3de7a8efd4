"""Environments for the genetic algorithm: one whose episodes last a heavy-tailed time, without
taking a processor.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

TAILED = "tools.benchmarks.utilisation.heavy_tailed_env:Tailed-v0"
#: Lengths are Pareto's: a mean of some 20 steps, one in a hundred beyond 100.
LEAST, EXPONENT, MOST = 5, 1.3, 400
STEP_SECONDS = 0.005


class Tailed(gymnasium.Env[Any, Any]):
    """An episode's length is drawn from its seed; each step sleeps, and pays minus the squared
    distance from a fixed action.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = min(MOST, int(LEAST * (1 + self.np_random.pareto(EXPONENT))))
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        self.left -= 1
        return np.ones(2, np.float32), -float((action[0] - 0.5) ** 2), self.left == 0, False, {}


if "Tailed-v0" not in gymnasium.registry:
    gymnasium.register("Tailed-v0", lambda **_: Tailed(), max_episode_steps=MOST)
