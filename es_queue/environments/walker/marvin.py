"""Marvin-v0: BipedalWalker's world with the body of the 42 schools' walking_marvin projects.

Course, motors, reward, lidar and observation [24] are BipedalWalker's. The body is top-heavy, the
motors are stronger for its weight, and the episode has no step limit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from es_queue.environments.walker.lean_walker import LeanWalker
from es_queue.environments.walker.walker_body import MARVIN
from es_queue.numerics.arrays import Floats

if TYPE_CHECKING:
    from es_queue.environments.walker.rendered_marvin import RenderedMarvin


_LEG = [math.pi, 5.0, math.pi, 5.0]
_LOW = [
    -math.pi,
    -5.0,
    -5.0,
    -5.0,
    *(-bound for bound in _LEG),
    0.0,
    *(-bound for bound in _LEG),
    0.0,
    *[-1.0] * 10,
]
_HIGH = [math.pi, 5.0, 5.0, 5.0, *_LEG, 5.0, *_LEG, 5.0, *[1.0] * 10]
_SEEDS = 2**32


class LeanMarvin(LeanWalker):
    """Marvin as an Environment: the lean walker with Marvin's body."""

    shape = MARVIN

    def __init__(self) -> None:
        super().__init__(hardcore=False)


class MarvinEnv(gymnasium.Env[Floats, Floats]):
    """Marvin for ``gymnasium.make``; its episodes are LeanMarvin's, to the bit.

    render_mode: "rgb_array", "human" (a window that follows each step) or None
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 50}  # noqa: RUF012 - Gymnasium has it so

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(
            np.array(_LOW, np.float32), np.array(_HIGH, np.float32)
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self._env: LeanMarvin | RenderedMarvin = (
            LeanMarvin() if render_mode is None else _make_rendered(render_mode)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Begin the episode of ``seed``; without one, of a seed that the environment's own
        generator draws.
        """
        super().reset(seed=seed)
        chosen = (
            seed if seed is not None and seed < _SEEDS else int(self.np_random.integers(_SEEDS))
        )
        return self._env.reset(chosen), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Play 1/50 s; never truncated."""
        observation, reward, over = self._env.step(np.asarray(action, np.float32))
        return observation, reward, over, False, {}

    @property
    def hull(self) -> Any:
        return self._env.body.hull

    def render(self) -> Any:
        return None if isinstance(self._env, LeanMarvin) else self._env.render()

    def close(self) -> None:
        self._env.close()


def _make_rendered(render_mode: str) -> RenderedMarvin:
    # start-up: pygame, for drawing only
    from es_queue.environments.walker.rendered_marvin import RenderedMarvin

    return RenderedMarvin(render_mode)
