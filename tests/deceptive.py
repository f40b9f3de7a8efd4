"""A deceptive task: the straight way to the goal ends in a trap, and the reward pulls into it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MAZE = "tests.deceptive:Trap-v0"
START, GOAL, REACH = np.array([0.0, -1.0]), np.array([0.0, 2.0]), 0.3
STEPS, STRIDE = 20, 0.35
#: A cup that is open towards the start: a wall across the straight way, and one down each of its
#: ends.
WALLS = ((-1.0, 1.0, 1.0, 1.0), (-1.0, 0.4, -1.0, 1.0), (1.0, 0.4, 1.0, 1.0))


class Trap(gymnasium.Env[Any, Any]):
    """A point that walks; the return is minus its distance from the goal at the end.

    It sees where it is, with a little noise by the seed. Straight towards the goal it ends in the
    cup, at a return of -1; around it the way first leads away from the goal.
    """

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.left = START + self.np_random.uniform(-0.05, 0.05, 2), STEPS
        return self._look(), {}

    def _look(self) -> Any:
        return (self.place / 3).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        aim = self.place + STRIDE * np.clip(np.asarray(action, np.float64), -1, 1)
        if not any(crosses(self.place, aim, wall) for wall in WALLS):
            self.place = np.clip(aim, -3, 3)
        away = float(np.hypot(*(self.place - GOAL)))
        over = self.left == 0 or away < REACH
        return self._look(), -away if over else 0.0, over, False, {}


def crosses(one: Any, other: Any, wall: tuple[float, float, float, float]) -> bool:
    """Whether the way from ``one`` to ``other`` meets the wall, a line along an axis."""
    left, low, right, high = wall
    across = 0 if left == right else 1
    at, (first, last) = (left, (low, high)) if across == 0 else (low, (left, right))
    if (one[across] - at) * (other[across] - at) > 0 or one[across] == other[across]:
        return False
    share = (at - one[across]) / (other[across] - one[across])
    met = one[1 - across] + share * (other[1 - across] - one[1 - across])
    return bool(first <= met <= last)


def quarter(environment: gymnasium.Env[Any, Any]) -> list[float]:
    """A behaviour of one's own: in which quarter it ended."""
    place = environment.unwrapped.place  # type: ignore[attr-defined]
    return [float(np.sign(place[0])), float(np.sign(place[1]))]


def nothing(environment: gymnasium.Env[Any, Any]) -> list[float]:
    """A behaviour without numbers."""
    return []


if "Trap-v0" not in gymnasium.registry:
    gymnasium.register("Trap-v0", Trap, max_episode_steps=STEPS)
