"""CartPole at a fixed pace: an episode's wall time is its number of steps, whatever else the
machine does.

A step of real CartPole takes microseconds, so workers on a few cores would measure each other.
Waiting costs no CPU.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium

STEP_SECONDS = 0.0015


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each step ends ``STEP_SECONDS`` after the one before, or at once where it is late."""

    _due = 0.0

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        found = super().reset(**given)
        self._due = time.monotonic()
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        found = super().step(action)
        self._due += STEP_SECONDS
        if (left := self._due - time.monotonic()) > 0:
            time.sleep(left)
        return found
