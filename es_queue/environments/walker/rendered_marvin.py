"""Marvin, rendered: a grey robot under a night sky."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from Box2D import b2Vec2

from es_queue.environments.walker import terrain
from es_queue.environments.walker.rendered_walker import (
    VIEW_WIDTH,
    RenderedWalker,
    Scenery,
    make_drawable,
)
from es_queue.environments.walker.terrain import SCALE
from es_queue.environments.walker.walker_body import EYES, MARVIN, VISOR, Polygon

_SKY, _CLOUD, _GROUND = (59, 36, 120), (87, 74, 128), (128, 153, 178)
_METAL = ((230, 230, 230), (140, 140, 150))
_BLACK, _GREEN = ((25, 25, 30),) * 2, ((90, 220, 90),) * 2
_VIEW_HEIGHT = 400 / SCALE


class RenderedMarvin(RenderedWalker):
    """Plays the same episodes as LeanMarvin.

    render_mode: "rgb_array" or "human" (a window that follows each step)
    """

    shape = MARVIN
    soil = _GROUND

    def __init__(self, render_mode: str) -> None:
        super().__init__(hardcore=False, v2_lidar=False, render_mode=render_mode)

    def _draw_clouds(self) -> None:
        # Gymnasium paints its clouds white: these are part of the scenery.
        self._clouds = terrain.draw_clouds(self._stream)
        self._canvas.cloud_poly = []

    def _scenery(self, scroll: float) -> Scenery:
        """Sky and clouds, which move at half the walker's pace, behind the ground."""
        right = scroll + VIEW_WIDTH + 1.0  # whole pixels, whatever the scroll is rounded to
        sky = [(scroll, 0.0), (right, 0.0), (right, _VIEW_HEIGHT), (scroll, _VIEW_HEIGHT)]
        clouds = [[(x + scroll / 2, y) for x, y in cloud] for cloud in self._clouds]
        return [(sky, _SKY), *((cloud, _CLOUD) for cloud in clouds), *super()._scenery(scroll)]

    def _drawlist(self) -> list[SimpleNamespace]:
        """The legs in reverse order, the trunk, and the shapes painted onto it."""
        hull = self.body.hull
        legs = [make_drawable(leg.fixtures, _METAL) for leg in reversed(self.body.legs)]
        eyes = [make_drawable([_attach_polygon(eye, hull)], _GREEN) for eye in EYES]
        return [
            *legs,
            make_drawable(hull.fixtures, _METAL),
            make_drawable([_attach_polygon(VISOR, hull)], _BLACK),
            *eyes,
        ]


def _attach_polygon(polygon: Polygon, body: Any) -> SimpleNamespace:
    """A polygon that moves with ``body`` without being part of it: Gymnasium sees a fixture."""
    vertices = [b2Vec2(x / SCALE, y / SCALE) for x, y in polygon]
    return SimpleNamespace(body=body, shape=SimpleNamespace(vertices=vertices))
