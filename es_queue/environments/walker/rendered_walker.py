"""The lean BipedalWalker, rendered with Gymnasium's drawing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.envs.box2d.bipedal_walker import BipedalWalker
from numpy.typing import NDArray

from es_queue.environments.walker import terrain
from es_queue.environments.walker.lean_walker import RAYS, LeanWalker
from es_queue.environments.walker.terrain import SCALE
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats

VIEW_WIDTH = 600 / SCALE

# Gymnasium's colours: inside, outline.
_OBSTACLE = ((255, 255, 255), (153, 153, 153))
_TURF = (((76, 255, 76), (76, 255, 76)), ((76, 204, 76), (76, 204, 76)))
_SOIL = (102, 153, 76)
_HULL = ((127, 51, 229), (76, 76, 127))
_LEGS = (((178, 101, 152), (127, 76, 101)), ((128, 51, 102), (77, 26, 51)))

#: Polygons in metres and their colours, the farthest first.
Scenery = list[tuple[list[tuple[float, float]], tuple[int, int, int]]]


class RenderedWalker(LeanWalker):
    """Plays the same episodes as LeanWalker, and passes their bodies to Gymnasium's ``render``.

    render_mode: "rgb_array" or "human" (a window that follows each step)
    """

    soil = _SOIL

    def __init__(self, hardcore: bool, v2_lidar: bool, render_mode: str) -> None:
        super().__init__(hardcore, v2_lidar)
        modes = BipedalWalker.metadata["render_modes"]
        if render_mode not in modes:
            raise UsageError(
                f"BipedalWalker cannot draw {render_mode!r}; it offers {', '.join(modes)}"
            )
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
        """The current frame, [400, 600, 3], under "rgb_array"; None under "human", which draws in
        its window.
        """
        frame: NDArray[np.uint8] | None = None
        if self._canvas.render_mode == "rgb_array":
            frame = self._canvas.render()
        return frame

    def close(self) -> None:
        self._canvas.close()

    def _draw_clouds(self) -> None:
        self._canvas.cloud_poly = [
            (cloud, min(x for x, _ in cloud), max(x for x, _ in cloud))
            for cloud in terrain.draw_clouds(self._stream)
        ]

    def _update_canvas(self, observation: Floats) -> None:
        """Point the canvas at the walker; the lidar's ends follow from the last ten
        observations.
        """
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
        """The bodies in Gymnasium's order of painting: the ground from right to left,
        legs, hull.
        """
        body, edges = self.body, terrain.LENGTH - 1
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
