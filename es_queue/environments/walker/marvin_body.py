"""Marvin's shape: a top-heavy trunk on BipedalWalker's leg joints; the polygons are es-queue's own.

Masses, extents and anchors are the original's: trunk 2.46 kg with its centre 0.89 m above the
origin and 2.73 kg m² about it, thigh 0.27 kg, shank with foot 0.32 kg.
"""

from __future__ import annotations

import math
from typing import Any

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
