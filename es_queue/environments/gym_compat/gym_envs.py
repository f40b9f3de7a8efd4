"""The environments that the old gym's (0.26.2) ``gym.make`` creates for es-queue's ids."""

from __future__ import annotations

from typing import Any

import gym
from gym.envs.box2d.bipedal_walker import BipedalWalker

from es_queue.environments.walker.marvin import MarvinEnv
from es_queue.environments.walker.walker_v2 import LidarV2Mixin


class GymBipedalWalkerV2(LidarV2Mixin, BipedalWalker):  # type: ignore[misc]
    """BipedalWalker-v2 on gym's own class."""


class GymMarvin(gym.Env):  # type: ignore[misc]
    """MarvinEnv with gym's spaces; the same seed gives the same episode."""

    metadata = MarvinEnv.metadata

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._marvin: Any = MarvinEnv(render_mode)
        observations: Any = self._marvin.observation_space
        actions: Any = self._marvin.action_space
        self.observation_space = gym.spaces.Box(
            observations.low, observations.high, dtype=observations.dtype
        )
        self.action_space = gym.spaces.Box(actions.low, actions.high, dtype=actions.dtype)

    @property
    def hull(self) -> Any:
        return self._marvin.hull

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._marvin.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        return self._marvin.step(action)

    def render(self) -> Any:
        return self._marvin.render()

    def close(self) -> None:
        self._marvin.close()
