"""The walkers on Gymnasium's classes: the lean ones rendered, Marvin-v0 and BipedalWalker-v2."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import Box2D
import gymnasium
import numpy as np
from gymnasium.envs.box2d.bipedal_walker import BipedalWalker
from numpy.typing import NDArray

from es_queue.environments.walker import (
    LENGTH,
    MARVIN,
    RAYS,
    SCALE,
    LeanMarvin,
    LeanWalker,
    LidarV2,
    Polygon,
    draw_clouds,
)
from es_queue.numerics.arrays import Floats

VIEW_WIDTH, VIEW_HEIGHT = 600 / SCALE, 400 / SCALE

# Gymnasium's colours: inside, outline.
_OBSTACLE = ((255, 255, 255), (153, 153, 153))
_TURF = (((76, 255, 76), (76, 255, 76)), ((76, 204, 76), (76, 204, 76)))
_SOIL = (102, 153, 76)
_HULL = ((127, 51, 229), (76, 76, 127))
_LEGS = (((178, 101, 152), (127, 76, 101)), ((128, 51, 102), (77, 26, 51)))

#: Polygons in metres and their colours, the farthest first.
Scenery = list[tuple[Polygon, tuple[int, int, int]]]


class RenderedWalker(LeanWalker):
    """LeanWalker's episodes, whose bodies Gymnasium's ``render`` draws.

    render_mode: "rgb_array" or "human" (a window that follows each step)
    """

    soil = _SOIL

    def __init__(self, hardcore: bool, v2_lidar: bool, render_mode: str) -> None:
        super().__init__(hardcore, v2_lidar)
        self._canvas: Any = BipedalWalker(render_mode=render_mode)
        self._is_reset = False
        self._ground: Scenery = []

    def reset(self, seed: int) -> Floats:
        # The first observation comes from a step, in which there is nothing to be drawn yet.
        self._is_reset = False
        observation = super().reset(seed)
        self._canvas.lidar_render = 0
        self._canvas.drawlist = self._drawlist()
        edges = self.body.terrain.edges()
        self._ground = [([a, b, (b[0], 0), (a[0], 0)], self.soil) for a, b in edges]
        self._is_reset = True
        self._update_canvas(observation)
        return observation

    def step(self, action: Floats) -> tuple[Floats, float, bool]:
        outcome = super().step(action)
        if self._is_reset:
            self._update_canvas(outcome[0])
        return outcome

    @property
    def fps(self) -> float:
        return float(BipedalWalker.metadata["render_fps"])

    def render(self) -> NDArray[np.uint8] | None:
        frame: NDArray[np.uint8] | None = None
        if self._canvas.render_mode == "rgb_array":
            frame = self._canvas.render()
        return frame

    def close(self) -> None:
        self._canvas.close()

    def _draw_clouds(self) -> None:
        self._canvas.cloud_poly = [
            (cloud, min(x for x, _ in cloud), max(x for x, _ in cloud))
            for cloud in draw_clouds(self._stream)
        ]

    def _update_canvas(self, observation: Floats) -> None:
        """Point the canvas at the walker; the lidar's ends follow from the last observations."""
        x, y = self.body.hull.position
        self._canvas.scroll = x - VIEW_WIDTH / 5
        self._canvas.terrain_poly = self._scenery(self._canvas.scroll)
        self._canvas.lidar = [
            SimpleNamespace(
                p1=(x, y), p2=(_ray_end(x, x + right, reach), _ray_end(y, y - down, reach))
            )
            for (right, down), reach in zip(RAYS, observation[14:], strict=True)
        ]
        if self._canvas.render_mode == "human":
            self._canvas.render()

    def _scenery(self, scroll: float) -> Scenery:
        """The background if the view's left edge is at ``scroll`` metres."""
        return self._ground

    def _drawlist(self) -> list[SimpleNamespace]:
        """In Gymnasium's order of painting: the ground from right to left, legs, hull."""
        body, edges = self.body, LENGTH - 1
        ground = list(reversed(body.floor.fixtures))
        turf = [
            make_drawable([f], _TURF[(edges - 1 - i) % 2]) for i, f in enumerate(ground[:edges])
        ]
        obstacles = [make_drawable([f], _OBSTACLE) for f in ground[edges:]]
        legs = [make_drawable(leg.fixtures, _LEGS[i // 2]) for i, leg in enumerate(body.legs)]
        return [*turf, *obstacles, *legs, make_drawable(body.hull.fixtures, _HULL)]


def _ray_end(start: float, end: float, fraction: np.float32) -> float:
    """The end of a ray, in float32 like Box2D's, because a pixel can depend on the last bit."""
    return float((1 - fraction) * np.float32(start) + fraction * np.float32(end))


def make_drawable(fixtures: Any, colors: tuple[Any, Any]) -> SimpleNamespace:
    return SimpleNamespace(fixtures=fixtures, color1=colors[0], color2=colors[1])


# --- Marvin: a grey robot under a night sky

_SKY, _CLOUD = (59, 36, 120), (87, 74, 128)
_METAL = ((230, 230, 230), (140, 140, 150))
_BLACK, _GREEN = ((25, 25, 30),) * 2, ((90, 220, 90),) * 2
#: What is only painted onto the trunk, in pixels: a visor and two eyes.
_PAINT: list[tuple[Polygon, Any]] = [
    ([(-18.0, 44.0), (33.0, 46.0), (33.0, 54.0), (-18.0, 56.0)], _BLACK),
    ([(8.0, 47.0), (16.0, 47.5), (16.0, 52.5), (8.0, 53.0)], _GREEN),
    ([(21.0, 47.5), (28.0, 48.0), (28.0, 52.0), (21.0, 52.5)], _GREEN),
]


class RenderedMarvin(RenderedWalker):
    shape = MARVIN
    soil = (128, 153, 178)

    def __init__(self, render_mode: str) -> None:
        super().__init__(hardcore=False, v2_lidar=False, render_mode=render_mode)

    def _draw_clouds(self) -> None:
        # Gymnasium paints its clouds white: these are part of the scenery.
        self._clouds = draw_clouds(self._stream)
        self._canvas.cloud_poly = []

    def _scenery(self, scroll: float) -> Scenery:
        """Sky and clouds, which move at half the walker's pace, behind the ground."""
        right = scroll + VIEW_WIDTH + 1.0  # whole pixels, whatever the scroll is rounded to
        sky = [(scroll, 0.0), (right, 0.0), (right, VIEW_HEIGHT), (scroll, VIEW_HEIGHT)]
        clouds = [[(x + scroll / 2, y) for x, y in cloud] for cloud in self._clouds]
        return [(sky, _SKY), *((cloud, _CLOUD) for cloud in clouds), *super()._scenery(scroll)]

    def _drawlist(self) -> list[SimpleNamespace]:
        """The legs in reverse order, the trunk, and the shapes painted onto it."""
        hull = self.body.hull
        painted = []
        for polygon, colors in _PAINT:
            vertices = [Box2D.b2Vec2(x / SCALE, y / SCALE) for x, y in polygon]
            fixture = SimpleNamespace(body=hull, shape=SimpleNamespace(vertices=vertices))
            painted.append(make_drawable([fixture], colors))
        legs = [make_drawable(leg.fixtures, _METAL) for leg in reversed(self.body.legs)]
        return [*legs, make_drawable(hull.fixtures, _METAL), *painted]


class MarvinEnv(gymnasium.Env[Floats, Floats]):
    """Marvin for ``gymnasium.make``; its episodes are LeanMarvin's, to the bit."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 50}  # noqa: RUF012 - Gymnasium has it so

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        leg = [math.pi, 5.0, math.pi, 5.0]
        high = np.array([math.pi, 5.0, 5.0, 5.0, *leg, 5.0, *leg, 5.0, *[1.0] * 10], np.float32)
        low = -high
        low[[8, 13]] = 0.0
        self.observation_space = gymnasium.spaces.Box(low, high)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self._env: LeanWalker = LeanMarvin() if render_mode is None else RenderedMarvin(render_mode)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is None or seed >= 2**32:
            seed = int(self.np_random.integers(2**32))
        return self._env.reset(seed), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Play 1/50 s; never truncated."""
        observation, reward, over = self._env.step(np.asarray(action, np.float32))
        return observation, reward, over, False, {}

    @property
    def hull(self) -> Any:
        return self._env.body.hull

    def render(self) -> Any:
        return self._env.render() if isinstance(self._env, RenderedMarvin) else None

    def close(self) -> None:
        self._env.close()


# --- BipedalWalker-v2: version 3 with the lidar of version 2 (gym 0.15.4)


class LidarV2Mixin:
    """Gives a BipedalWalker of version 3, Gymnasium's or gym's, the lidar of version 2. It builds a
    new Box2D world at each reset, so an episode depends only on its seed.
    """

    lidar: list[Any]
    terrain: list[Any]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        self.world = Box2D.b2World()
        self.terrain = []
        parent: Any = super()
        first: tuple[Floats, dict[str, Any]] = parent.reset(seed=seed, options=options)
        return first

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        # Gymnasium's reset puts the lidar of version 3 in place and ends with a step: this one.
        if not isinstance(self.lidar[0], LidarV2):
            self.lidar = [LidarV2(()) for _ in RAYS]
        parent: Any = super()
        outcome: tuple[Floats, float, bool, bool, dict[str, Any]] = parent.step(action)
        return outcome


class BipedalWalkerV2(LidarV2Mixin, BipedalWalker):
    """gym 0.15.4's BipedalWalker-v2 and BipedalWalkerHardcore-v2 to the bit, given its stream."""
