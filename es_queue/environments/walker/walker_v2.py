"""BipedalWalker-v2 for Gymnasium: version 3 with the lidar of version 2 (gym 0.15.4)."""

# ruff: noqa: N802 - Box2D calls its listeners by these names.

from __future__ import annotations

from typing import Any

import Box2D
from gymnasium.envs.box2d.bipedal_walker import BipedalWalker

from es_queue.numerics.arrays import Floats


class LidarCallback(Box2D.b2RayCastCallback):  # type: ignore[misc]
    """Ends the ray at the first ground that Box2D's tree reports, near or far; other bodies do not
    count.
    """

    fraction = 1.0

    def ReportFixture(self, fixture: Any, point: Any, normal: Any, fraction: float) -> float:
        if fixture.filterData.categoryBits & 1 == 0:
            return 1.0
        self.p2 = point
        self.fraction = fraction
        return 0.0


class LidarV2Mixin:
    """Precedes a BipedalWalker of version 3, Gymnasium's or gym's, and gives it the lidar of
    version 2.

    Unlike both, it builds a new Box2D world at each reset, so an episode depends only on its seed.
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
        if not isinstance(self.lidar[0], LidarCallback):
            self.lidar = [LidarCallback() for _ in range(10)]
        parent: Any = super()
        outcome: tuple[Floats, float, bool, bool, dict[str, Any]] = parent.step(action)
        return outcome


class BipedalWalkerV2(LidarV2Mixin, BipedalWalker):
    """The BipedalWalker-v2 and BipedalWalkerHardcore-v2 of gym 0.15.4 to the bit, given the same
    random numbers.
    """
