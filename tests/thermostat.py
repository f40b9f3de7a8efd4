"""A room with a heater: a task that needs a constant action, so a policy without a bias fails."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

THERMOSTAT = "tests.thermostat:Thermostat-v0"


class Thermostat(gymnasium.Env[Any, Any]):
    """A room of 10 to 25 degrees loses a twentieth of its difference to the outside, of -5 to 5
    degrees, per step; the heater, from 0 to 1, adds up to 2 degrees. The reward is minus the
    distance from 20 degrees.
    """

    observation_space = spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.room, self.outside = self.np_random.uniform(10, 25), self.np_random.uniform(-5, 5)
        return np.array([self.room, self.outside], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.room += 2 * float(action[0]) - (self.room - self.outside) / 20
        observed = np.array([self.room, self.outside], np.float32)
        return observed, -abs(self.room - 20), False, False, {}


gymnasium.register("Thermostat-v0", Thermostat, max_episode_steps=200)
