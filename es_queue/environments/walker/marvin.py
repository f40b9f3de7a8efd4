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
from es_queue.numerics.arrays import Floats

if TYPE_CHECKING:
    from es_queue.environments.walker.rendered_marvin import RenderedMarvin


from es_queue.environments.walker.walker_body import LEG_H, WalkerShape, make_fixture

_DENSITY = 0.5
#: The most corners that Box2D takes.
_ROUND = 16

Polygon = list[tuple[float, float]]


def _ellipse(x: float, y: float, width: float, height: float) -> Polygon:
    """Sixteen corners; centre and half axes in pixels."""
    turns = [2 * math.pi * i / _ROUND for i in range(_ROUND)]
    return [
        (round(x + width * math.cos(turn), 1), round(y + height * math.sin(turn), 1))
        for turn in turns
    ]


def _body(*polygons: Polygon, **more: float) -> list[Any]:
    return [make_fixture(polygon, _DENSITY, **more) for polygon in polygons]


_BRIM = _ellipse(4.1, 50.2, 31.6, 12.2)
_DOME = _ellipse(6.0, 62.0, 18.6, 14.8)
_NECK = [(-5.0, 18.0), (8.0, 18.0), (6.0, 36.0), (-3.0, 36.0)]
_COLLAR = [(-12.0, 14.0), (14.0, 14.0), (8.0, 21.0), (-6.0, 21.0)]
_CHEST = [
    (-20.0, -18.0),
    (22.8, -18.0),
    (28.2, -10.0),
    (28.2, 12.0),
    (20.1, 20.0),
    (-17.3, 20.0),
    (-25.3, 12.0),
    (-25.3, -10.0),
]
_HIPS = [(-7.6, -23.8), (10.4, -23.8), (15.4, -18.0), (-12.6, -18.0)]
_THIGH = [
    (-9.0, -10.2),
    (-3.6, -22.7),
    (0.6, -22.7),
    (9.5, -4.0),
    (9.5, 6.0),
    (6.0, 10.7),
    (-6.0, 10.7),
    (-9.0, 6.0),
]
#: Heel and toe are rounded: who does nothing tips over backwards.
_SHANK = [
    (-7.1, -12.0),
    (-2.8, -25.2),
    (10.3, -25.2),
    (16.3, -22.0),
    (16.3, -19.0),
    (1.6, 10.2),
    (-7.1, 10.2),
]

MARVIN = WalkerShape(
    hull=_body(_BRIM, _DOME, _NECK, _COLLAR, _CHEST, _HIPS, friction=0.1),
    upper=_body(_THIGH),
    lower=_body(_SHANK),
    knee=LEG_H / 3,
    height=3 * LEG_H,
    hips=2.0,
)

#: What is only painted onto the trunk, in pixels: a visor and two eyes.
VISOR: Polygon = [(-18.0, 44.0), (33.0, 46.0), (33.0, 54.0), (-18.0, 56.0)]
EYES: list[Polygon] = [
    [(8.0, 47.0), (16.0, 47.5), (16.0, 52.5), (8.0, 53.0)],
    [(21.0, 47.5), (28.0, 48.0), (28.0, 52.0), (21.0, 52.5)],
]


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
    """Marvin as an Environment: the lean walker in his shape."""

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
        """The trunk in Box2D's world."""
        return self._env.body.hull

    def render(self) -> Any:
        return None if isinstance(self._env, LeanMarvin) else self._env.render()

    def close(self) -> None:
        self._env.close()


def _make_rendered(render_mode: str) -> RenderedMarvin:
    # start-up: pygame, for drawing only
    from es_queue.environments.walker.rendered_marvin import RenderedMarvin

    return RenderedMarvin(render_mode)
