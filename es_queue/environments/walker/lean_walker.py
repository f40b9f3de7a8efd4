"""A leaner BipedalWalker: Gymnasium's physics bit for bit, EnvPool's random stream and reward
rounding.
"""

from __future__ import annotations

# ruff: noqa: N802 - Box2D calls its listeners by these names.
import math
from collections.abc import Callable
from typing import Any

import Box2D
import numpy as np

from es_queue.environments.walker import terrain
from es_queue.environments.walker.mt19937 import Mt19937
from es_queue.environments.walker.terrain import SCALE, STEP
from es_queue.environments.walker.walker_body import (
    BIPEDAL_WALKER,
    MOTORS_TORQUE,
    WalkerBody,
    build_ground,
    build_walker,
)
from es_queue.numerics.arrays import Floats

RANGE = 160 / SCALE
#: Where the ten rays end, seen from the hull: (right, down), from straight down to almost
#: level.
RAYS = [(math.sin(1.5 * i / 10.0) * RANGE, math.cos(1.5 * i / 10.0) * RANGE) for i in range(10)]


class Lidar(Box2D.b2RayCastCallback):  # type: ignore[misc]
    """Rays as BipedalWalker-v3 has them: they end at the nearest ground.

    They also pass through the walker, so they are cast in a world that has only the ground: two of
    three reports in the walker's own world would be of its own parts.
    """

    def fractions(self, ray: Callable[..., None], x: float, y: float) -> list[float]:
        """The free fraction of each ray of the hull at (x, y); ``ray`` casts one."""
        measured, origin = [], (x, y)
        for right, down in RAYS:
            self.fraction = 1.0
            ray(self, origin, (x + right, y - down))
            measured.append(self.fraction)
        return measured

    def ReportFixture(self, fixture: Any, point: Any, normal: Any, fraction: float) -> float:
        self.fraction = fraction
        return fraction


class LidarV2(Lidar):
    """Rays as version 2 had them: they end at the first ground that Box2D's tree happens to
    report, so they need the walker's own world.
    """

    def ReportFixture(self, fixture: Any, point: Any, normal: Any, fraction: float) -> float:
        # Friction tells ground (2.5) from walker (at most 0.2) at a third of the category bits'
        # price.
        if fixture.friction < 2.0:
            return 1.0
        self.fraction = fraction
        return 0.0


FPS = 50.0
SPEED_HIP, SPEED_KNEE = 4.0, 6.0
FINISH = (terrain.LENGTH - terrain.GRASS_LENGTH) * STEP

_f = np.float32
_ZERO, _ONE, _FIVE, _SCALE, _FORWARD = _f(0), _f(1), _f(5), _f(SCALE), _f(130)
_TORQUE_PRICE = _f(0.00035) * _f(MOTORS_TORQUE)
_IDLE = np.zeros(4, np.float32)


class LeanWalker:
    """BipedalWalker, normal or Hardcore, as an Environment: a new Box2D world for every episode.

    With the same random stream, observations and terminations are those of Gymnasium's class. The
    stream and the rewards (float32, rounded in EnvPool's order) are EnvPool's. So are the two last
    bits in which EnvPool differs from Gymnasium: a pit's far wall, and actions below 1e-8.

    hardcore: with stumps, stairs and pits
    v2_lidar: the lidar of the old BipedalWalkerHardcore-v2
    """

    shape = BIPEDAL_WALKER
    body: WalkerBody

    def __init__(self, hardcore: bool, v2_lidar: bool = False) -> None:
        self.hardcore = hardcore
        self._lidar = LidarV2() if v2_lidar else Lidar()
        self._lidar_sees_walker = v2_lidar
        self._stream = Mt19937(0)
        self._shaping = _ZERO

    def reset(self, seed: int) -> Floats:
        """Build the world of ``seed``, an integer in [0, 2**32), and return the first observation
        [24].
        """
        self._stream.seed(seed)
        ground = terrain.TerrainGenerator(self._stream, self.hardcore).generate()
        self._draw_clouds()
        self.body = build_walker(ground, self._stream, self.shape)
        self._seen = self.body.world
        if not self._lidar_sees_walker:
            self._seen = Box2D.b2World()
            build_ground(self._seen, ground)
        return self.step(_IDLE)[0]

    def step(self, action: Floats) -> tuple[Floats, float, bool]:
        """Play 1/50 s with float32 ``action`` [4]; the reward is a float32 value in a
        Python float.
        """
        effort = self._set_motors(action)
        self.body.world.Step(1.0 / FPS, 180, 60)
        position, angle = self.body.hull.position, self.body.hull.angle
        x = position.x
        observation = self._observe(x, position.y, angle)
        shaping = _FORWARD * _f(x) / _SCALE - _FIVE * _f(abs(angle))
        reward = shaping - self._shaping - _TORQUE_PRICE * effort
        self._shaping = shaping
        if self.body.contacts.has_fallen or x < 0:
            return observation, -100.0, True
        return observation, float(reward), x > FINISH

    def behaviour(self) -> Floats:
        """Position of the hull, x and y [2]."""
        position = self.body.hull.position
        return np.array([position.x, position.y], np.float32)

    def close(self) -> None:
        """Nothing to release."""

    def _draw_clouds(self) -> None:
        self._stream.skip(terrain.CLOUD_WORDS)

    def _set_motors(self, action: Floats) -> np.float32:
        """Set the motors; returns the effort, the sum of |action|, each at most 1, in float32."""
        effort = _ZERO
        for joint, speed, power in zip(self.body.joints, _SPEEDS, action, strict=True):
            strength = min(abs(power), _ONE)
            joint.motorSpeed = speed * terrain.sign(power)
            joint.maxMotorTorque = MOTORS_TORQUE * float(strength)
            effort += strength
        return effort

    def _observe(self, x: float, y: float, angle: float) -> Floats:
        """The observation [24]; each formula in EnvPool's order of operations."""
        body = self.body
        velocity = body.hull.linearVelocity
        hip1, knee1, hip2, knee2 = body.joints
        state = [
            angle,
            2.0 * body.hull.angularVelocity / FPS,
            0.3 * velocity.x * 600 / SCALE / FPS,
            0.3 * velocity.y * 400 / SCALE / FPS,
            hip1.angle,
            hip1.speed / SPEED_HIP,
            knee1.angle + 1.0,
            knee1.speed / SPEED_KNEE,
            body.contacts.ground_contacts[0],
            hip2.angle,
            hip2.speed / SPEED_HIP,
            knee2.angle + 1.0,
            knee2.speed / SPEED_KNEE,
            body.contacts.ground_contacts[1],
            *self._lidar.fractions(self._seen.RayCast, x, y),
        ]
        return np.array(state, np.float32)


_SPEEDS = (SPEED_HIP, SPEED_KNEE, SPEED_HIP, SPEED_KNEE)
