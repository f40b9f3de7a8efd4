"""The lidar of BipedalWalker: ten rays from the hull to the ground, as v3 and as v2 have them."""

# ruff: noqa: N802 - Box2D calls its listeners by these names.

from __future__ import annotations

import math
from typing import Any

import Box2D

from es_queue.environments.walker.terrain import SCALE

RANGE = 160 / SCALE
#: Where the ten rays end, seen from the hull: (right, down), from straight down to almost
#: level.
RAYS = [(math.sin(1.5 * i / 10.0) * RANGE, math.cos(1.5 * i / 10.0) * RANGE) for i in range(10)]


class Lidar(Box2D.b2RayCastCallback):  # type: ignore[misc]
    """One ray as BipedalWalker-v3 has it: passes through the walker, ends at the nearest ground."""

    fraction = 1.0

    def ReportFixture(self, fixture: Any, point: Any, normal: Any, fraction: float) -> float:
        # Friction tells ground (2.5) from walker (at most 0.2) at a third of the category bits'
        # price.
        if fixture.friction < 2.0:
            return -1.0
        self.fraction = fraction
        return fraction


class LidarV2(Lidar):
    """One ray as version 2 had it: ends at the first ground that Box2D's tree happens to report."""

    def ReportFixture(self, fixture: Any, point: Any, normal: Any, fraction: float) -> float:
        if fixture.friction < 2.0:
            return 1.0
        self.fraction = fraction
        return 0.0
