"""The ground of BipedalWalker: Oleg Klimov's terrain (Gymnasium, MIT licence), drawn as EnvPool
draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from es_queue.environments.walker.mt19937 import Mt19937

SCALE = 30.0
STEP = 14 / SCALE
LENGTH = 200
HEIGHT = 400 / SCALE / 4
GRASS_LENGTH = 10
START_PAD = 20

_GRASS, _STUMP, _STAIRS, _PIT = range(4)
_STAIR_WIDTH = 4
_CLOUDS = LENGTH // 20
#: Words of the stream that the clouds take: for each one its place and five corners, two words a
#: number.
CLOUD_WORDS = _CLOUDS * (1 + 5 * 2) * 2

Point = tuple[float, float]
Polygon = list[Point]


@dataclass
class Terrain:
    """polygons: obstacles, four corners each; heights: of the ground, at x = 0, STEP, 2 STEP …"""

    polygons: list[Polygon] = field(default_factory=list)
    heights: list[float] = field(default_factory=list)

    def edges(self) -> list[tuple[Point, Point]]:
        points = [(i * STEP, y) for i, y in enumerate(self.heights)]
        return list(pairwise(points))


class TerrainGenerator:
    """Generates one height at a time from left to right; draws in exactly EnvPool's order."""

    def __init__(self, stream: Mt19937, hardcore: bool) -> None:
        self.stream, self.hardcore = stream, hardcore
        self.terrain = Terrain()
        self.x, self.y, self.original_y, self.velocity = 0.0, HEIGHT, 0.0, 0.0
        self.state, self.counter, self.index = _GRASS, START_PAD, 0
        self.stair_steps = self.stair_height = 0

    def generate(self) -> Terrain:
        begin: dict[int, Callable[[], None]] = {
            _STUMP: self._begin_stump,
            _STAIRS: self._begin_stairs,
            _PIT: self._begin_pit,
        }
        follow: dict[int, Callable[[], None]] = {
            _GRASS: self._grass,
            _STAIRS: self._stairs,
            _PIT: self._pit,
        }
        lay = follow
        for self.index in range(LENGTH):
            self.x = self.index * STEP
            if self.state in lay:
                lay[self.state]()
            self.terrain.heights.append(self.y)
            self.counter -= 1
            lay = follow
            if self.counter == 0:
                self._change()
                lay = begin
        return self.terrain

    def _change(self) -> None:
        self.counter = self.stream.integer(GRASS_LENGTH // 2, GRASS_LENGTH - 1)
        if self.state == _GRASS and self.hardcore:
            self.state = self.stream.integer(_STUMP, _PIT)
        else:
            self.state = _GRASS

    def _grass(self) -> None:
        self.velocity = 0.8 * self.velocity + 0.01 * sign(HEIGHT - self.y)
        if self.index > START_PAD:
            self.velocity += self.stream.uniform(-1.0, 1.0) / SCALE
        self.y += self.velocity

    def _begin_pit(self) -> None:
        self.counter = self.stream.integer(3, 4)
        x, y, bottom = self.x, self.y, self.y - 4 * STEP
        wall = [(x, y), (x + STEP, y), (x + STEP, bottom), (x, bottom)]
        self.terrain.polygons.extend([wall, far_wall(wall, STEP * self.counter)])
        self.counter += 2
        self.original_y = y

    def _pit(self) -> None:
        self.y = self.original_y - 4 * STEP if self.counter > 1 else self.original_y

    def _begin_stump(self) -> None:
        self.counter = self.stream.integer(1, 2)
        x, y, size = self.x, self.y, STEP * self.counter
        self.terrain.polygons.append([(x, y), (x + size, y), (x + size, y + size), (x, y + size)])

    def _begin_stairs(self) -> None:
        self.stair_height = 1 if self.stream.uniform(0.0, 1.0) > 0.5 else -1
        self.stair_steps = self.stream.integer(3, 4)
        self.original_y = self.y
        for s in range(self.stair_steps):
            left = self.x + STEP * s * _STAIR_WIDTH
            right = self.x + STEP * (1 + s) * _STAIR_WIDTH
            top = self.y + STEP * (s * self.stair_height)
            bottom = self.y + STEP * (s * self.stair_height - 1)
            self.terrain.polygons.append(
                [(left, top), (right, top), (right, bottom), (left, bottom)]
            )
        self.counter = self.stair_steps * _STAIR_WIDTH

    def _stairs(self) -> None:
        s = self.stair_steps * _STAIR_WIDTH - self.counter - self.stair_height
        self.y = self.original_y + STEP * s / _STAIR_WIDTH * self.stair_height


def far_wall(wall: Polygon, distance: float) -> Polygon:
    """The pit's other wall, ``distance`` to the right, with EnvPool's two roundings to float32.

    Gymnasium rounds once, after the addition, so its wall can differ by one float32 step.
    """
    return [(float(np.float32(x)) + distance, y) for x, y in wall]


def sign(value: float) -> float:
    """EnvPool's sign: values closer to zero than 1e-8 have none (NumPy's has no such tolerance)."""
    return 1.0 if value > 1e-8 else -1.0 if value < -1e-8 else 0.0


def draw_clouds(stream: Mt19937) -> list[Polygon]:
    """Draw the clouds, which only rendering shows, but which precede the walker in the stream."""
    return [_draw_cloud(stream) for _ in range(_CLOUDS)]


def _draw_cloud(stream: Mt19937) -> Polygon:
    x, y = stream.uniform(0.0, LENGTH) * STEP, 400 / SCALE * 3 / 4
    return [
        (
            x + 15 * STEP * math.sin(3.14 * 2 * a / 5) + stream.uniform(0.0, 5 * STEP),
            y + 5 * STEP * math.cos(3.14 * 2 * a / 5) + stream.uniform(0.0, 5 * STEP),
        )
        for a in range(5)
    ]
