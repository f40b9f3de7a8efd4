"""A task that needs memory: a cue is shown at the first step, and must be repeated after a delay in
which nothing is seen.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

RECALL = "tests.recall:Recall-v0"
DELAY = 5


class Recall(gymnasium.Env[Any, Any]):
    """Observations are [cue, whether to answer]; the cue is -1 or 1 at the reset and 0 after. The
    last of DELAY + 1 actions earns cue · action.

    Who acts on the present observation alone gives one answer to both cues, and so earns 0 on
    average.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.left = float(2 * self.np_random.integers(2) - 1), DELAY
        return np.array([self.cue, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        over = self.left == 0
        self.left -= 1
        reward = self.cue * float(np.asarray(action).ravel()[0]) if over else 0.0
        return np.array([0, self.left == 0], np.float32), reward, over, False, {}


def register() -> None:
    if RECALL.split(":")[1] not in gymnasium.registry:
        gymnasium.register(RECALL.split(":")[1], entry_point="tests.recall:Recall")


register()
