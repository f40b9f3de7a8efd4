"""An environment that fails in ways that take a process's whole state to its last words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

TRAPS = Path(__file__).resolve().parent


class Failing(gymnasium.Env[np.ndarray, np.ndarray]):
    """Raises, or ends its process by SIGABRT, once for each trap that is laid beside this file."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 3
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        for name, end in (("raise", self._raise), ("abort", os.abort)):
            try:
                (TRAPS / f"trap-{name}").unlink()
            except FileNotFoundError:
                continue
            end()
        return np.zeros(1, np.float32), float(action[0]), self._left == 0, False, {}

    def _raise(self) -> None:
        raise RuntimeError("the motor burnt")


gymnasium.register("Failing-v0", Failing)
