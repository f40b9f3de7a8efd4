"""BipedalWalker and Marvin, leaner: Gymnasium's physics bit for bit, EnvPool's random stream and
reward rounding.

The course is Oleg Klimov's (Gymnasium, MIT licence). Marvin, of the 42 schools' walking_marvin
projects, is top-heavy, has stronger motors for its weight, and its episode has no step limit.
"""

# ruff: noqa: N802 - Box2D calls its listeners by these names.

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import Box2D
import numpy as np
from Box2D.b2 import chainShape, edgeShape, fixtureDef, polygonShape, revoluteJointDef

from es_queue.environments.vector import Mt19937
from es_queue.numerics.arrays import Floats

SCALE = 30.0
STEP = 14 / SCALE
LENGTH = 200
HEIGHT = 400 / SCALE / 4
GRASS_LENGTH = 10
START_PAD = 20

_GRASS, _STUMP, _STAIRS, _PIT = range(4)
_STAIR_WIDTH = 4
_CLOUDS = LENGTH // 20
#: Words of the stream for each cloud's place and five corners, two words a number.
CLOUD_WORDS = _CLOUDS * (1 + 5 * 2) * 2

Point = tuple[float, float]
Polygon = list[Point]


# --- the ground


@dataclass
class Terrain:
    """polygons: obstacles, four corners each; heights: of the ground, at x = 0, STEP, 2 STEP …"""

    polygons: list[Polygon] = field(default_factory=list)
    heights: list[float] = field(default_factory=list)

    def edges(self) -> list[tuple[Point, Point]]:
        return list(pairwise((i * STEP, y) for i, y in enumerate(self.heights)))

    @cached_property
    def shapes(self) -> list[Any]:
        """The polygons as Box2D's, for several worlds."""
        return [polygonShape(vertices=polygon) for polygon in self.polygons]


def generate_terrain(stream: Mt19937, hardcore: bool) -> Terrain:
    """The ground from left to right; draws in exactly EnvPool's order."""
    terrain, y, original_y, velocity = Terrain(), HEIGHT, 0.0, 0.0
    state, counter, begins = _GRASS, START_PAD, False
    stair_steps = stair_height = 0
    for index in range(LENGTH):
        x = index * STEP
        if state == _GRASS:
            if not begins:
                velocity = 0.8 * velocity + 0.01 * sign(HEIGHT - y)
                if index > START_PAD:
                    velocity += stream.uniform(-1.0, 1.0) / SCALE
                y += velocity
        elif state == _STUMP:
            if begins:
                counter = stream.integer(1, 2)
                size = STEP * counter
                terrain.polygons.append(_box(x, y, x + size, y + size))
        elif state == _PIT:
            if begins:
                counter = stream.integer(3, 4)
                wall = _box(x, y, x + STEP, y - 4 * STEP)
                # EnvPool rounds twice to float32; Gymnasium once, after the addition.
                far_wall = [(float(np.float32(x)) + STEP * counter, y) for x, y in wall]
                terrain.polygons += [wall, far_wall]
                counter += 2
                original_y = y
            else:
                y = original_y - 4 * STEP if counter > 1 else original_y
        elif begins:
            stair_height = 1 if stream.uniform(0.0, 1.0) > 0.5 else -1
            stair_steps, original_y = stream.integer(3, 4), y
            for s in range(stair_steps):
                left, right = x + STEP * s * _STAIR_WIDTH, x + STEP * (1 + s) * _STAIR_WIDTH
                top = y + STEP * (s * stair_height)
                terrain.polygons.append(_box(left, top, right, y + STEP * (s * stair_height - 1)))
            counter = stair_steps * _STAIR_WIDTH
        else:
            s = stair_steps * _STAIR_WIDTH - counter - stair_height
            y = original_y + STEP * s / _STAIR_WIDTH * stair_height
        terrain.heights.append(y)
        counter -= 1
        begins = counter == 0
        if begins:
            counter = stream.integer(GRASS_LENGTH // 2, GRASS_LENGTH - 1)
            obstacle = hardcore and state == _GRASS
            state = stream.integer(_STUMP, _PIT) if obstacle else _GRASS
    return terrain


def _box(x: float, y: float, to_x: float, to_y: float) -> Polygon:
    return [(x, y), (to_x, y), (to_x, to_y), (x, to_y)]


def sign(value: float) -> float:
    """EnvPool's sign: values closer to zero than 1e-8 have none."""
    return 1.0 if value > 1e-8 else -1.0 if value < -1e-8 else 0.0


def draw_clouds(stream: Mt19937) -> list[Polygon]:
    """The clouds, which only rendering shows, but which precede the walker in the stream."""
    clouds = []
    for _ in range(_CLOUDS):
        x, y = stream.uniform(0.0, LENGTH) * STEP, 400 / SCALE * 3 / 4
        clouds.append(
            [
                (
                    x + 15 * STEP * math.sin(3.14 * 2 * a / 5) + stream.uniform(0.0, 5 * STEP),
                    y + 5 * STEP * math.cos(3.14 * 2 * a / 5) + stream.uniform(0.0, 5 * STEP),
                )
                for a in range(5)
            ]
        )
    return clouds


# --- the bodies

MOTORS_TORQUE = 80.0
INITIAL_RANDOM = 5.0
LEG_DOWN = -8 / SCALE
LEG_W, LEG_H = 8 / SCALE, 34 / SCALE
START_X = STEP * START_PAD / 2
FRICTION = 2.5

_HULL, _FEET = 1, (3, 5)
#: The walker's parts collide only with the ground, never with each other.
_WALKER = {"categoryBits": 0x0020, "maskBits": 0x001, "restitution": 0.0}


def make_fixture(polygon: Polygon, density: float, **more: float) -> Any:
    """A convex piece of a walker: corners in pixels from its body's origin, density in kg/m²."""
    vertices = [(x / SCALE, y / SCALE) for x, y in polygon]
    return fixtureDef(shape=polygonShape(vertices=vertices), density=density, **more, **_WALKER)


@dataclass(frozen=True)
class WalkerShape:
    """The parts of one walker's body; lengths in metres.

    hull, upper, lower: the convex pieces of the trunk, of a thigh and of a shank
    knee: distance from a thigh's origin down to the knee, and from there to the shank's origin
    height: of the hull's origin above level ground at the start
    hips: the hip motors' speed at the start, rad/s
    """

    hull: list[Any]
    upper: list[Any]
    lower: list[Any]
    knee: float
    height: float
    hips: float


BIPEDAL_WALKER = WalkerShape(
    hull=[make_fixture([(-30, 9), (6, 9), (34, 1), (34, -8), (-30, -8)], 5.0, friction=0.1)],
    upper=[fixtureDef(shape=polygonShape(box=(LEG_W / 2, LEG_H / 2)), density=1.0, **_WALKER)],
    lower=[
        fixtureDef(shape=polygonShape(box=(0.8 * LEG_W / 2, LEG_H / 2)), density=1.0, **_WALKER)
    ],
    knee=LEG_H / 2,
    height=2 * LEG_H,
    hips=1.0,
)


def _ellipse(x: float, y: float, width: float, height: float) -> Polygon:
    """Sixteen corners, Box2D's most; centre and half axes in pixels."""
    turns = [2 * math.pi * i / 16 for i in range(16)]
    return [
        (round(x + width * math.cos(turn), 1), round(y + height * math.sin(turn), 1))
        for turn in turns
    ]


# fmt: off
_BRIM = _ellipse(4.1, 50.2, 31.6, 12.2)
_DOME = _ellipse(6.0, 62.0, 18.6, 14.8)
_NECK = [(-5.0, 18.0), (8.0, 18.0), (6.0, 36.0), (-3.0, 36.0)]
_COLLAR = [(-12.0, 14.0), (14.0, 14.0), (8.0, 21.0), (-6.0, 21.0)]
_CHEST = [(-20.0, -18.0), (22.8, -18.0), (28.2, -10.0), (28.2, 12.0), (20.1, 20.0), (-17.3, 20.0),
          (-25.3, 12.0), (-25.3, -10.0)]
_HIPS = [(-7.6, -23.8), (10.4, -23.8), (15.4, -18.0), (-12.6, -18.0)]
_THIGH = [(-9.0, -10.2), (-3.6, -22.7), (0.6, -22.7), (9.5, -4.0), (9.5, 6.0), (6.0, 10.7),
          (-6.0, 10.7), (-9.0, 6.0)]
#: Heel and toe are rounded, so an idle Marvin tips over backwards.
_SHANK = [(-7.1, -12.0), (-2.8, -25.2), (10.3, -25.2), (16.3, -22.0), (16.3, -19.0), (1.6, 10.2),
          (-7.1, 10.2)]
# fmt: on
_PIECES = (_BRIM, _DOME, _NECK, _COLLAR, _CHEST, _HIPS)

MARVIN = WalkerShape(
    hull=[make_fixture(piece, 0.5, friction=0.1) for piece in _PIECES],
    upper=[make_fixture(_THIGH, 0.5)],
    lower=[make_fixture(_SHANK, 0.5)],
    knee=LEG_H / 3,
    height=3 * LEG_H,
    hips=2.0,
)


class ContactTracker(Box2D.b2ContactListener):  # type: ignore[misc]
    """Whether the hull touched the ground, and which feet touch it (1.0 or 0.0). As in Gymnasium, a
    foot is lifted when any of its contacts ends, even if another remains.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_fallen = False
        self.ground_contacts = [0.0, 0.0]

    def BeginContact(self, contact: Any) -> None:
        part = _part(contact)
        if part == _HULL:
            self.has_fallen = True
        elif part in _FEET:
            self.ground_contacts[_FEET.index(part)] = 1.0

    def EndContact(self, contact: Any) -> None:
        part = _part(contact)
        if part in _FEET:
            self.ground_contacts[_FEET.index(part)] = 0.0

    # Unused, but called for each contact in each step. A function in C costs least, and runs no
    # bytecode in which a signal's handler could raise: an exception here aborts the process.
    PreSolve = staticmethod(operator.is_)
    PostSolve = staticmethod(operator.is_)


def _part(contact: Any) -> int:
    """Which part of the walker touches the ground; the ground's own number is None."""
    part: int = contact.fixtureA.body.userData or contact.fixtureB.body.userData
    return part


@dataclass
class WalkerBody:
    """One episode's world. joints: hip and knee of the first leg, then of the second."""

    world: Any
    terrain: Terrain
    floor: Any
    hull: Any
    legs: list[Any]
    joints: list[Any]
    contacts: ContactTracker


def build_walker(ground: Terrain, stream: Mt19937, shape: WalkerShape) -> WalkerBody:
    """Put a walker onto ``ground`` and push it with a random force.

    The order of fixtures decides the order in which Box2D solves contacts: keep it.
    """
    world, contacts = Box2D.b2World(), ContactTracker()
    world.contactListener = contacts
    floor = build_ground(world, ground)
    hull = world.CreateDynamicBody(position=(START_X, HEIGHT + shape.height), fixtures=shape.hull)
    hull.userData = _HULL
    hull.ApplyForceToCenter((stream.uniform(-INITIAL_RANDOM, INITIAL_RANDOM), 0), True)
    body = WalkerBody(
        world=world, terrain=ground, floor=floor, hull=hull, legs=[], joints=[], contacts=contacts
    )
    hip = HEIGHT + shape.height - LEG_DOWN
    for side in (-1, 1):
        upper = _add_part(body, hip - LEG_H / 2, side * 0.05, shape.upper)
        _add_joint(body, (hull, LEG_DOWN), (upper, LEG_H / 2), side * shape.hips, (-0.8, 1.1))
        lower = _add_part(body, hip - LEG_H * 3 / 2, side * 0.05, shape.lower)
        _add_joint(body, (upper, -shape.knee), (lower, shape.knee), 1.0, (-1.6, -0.1))
    return body


def build_ground(world: Any, ground: Terrain) -> Any:
    """The whole ground as one static body: Gymnasium's 200 bodies give the same bits."""
    floor = world.CreateStaticBody()
    definition, edge = fixtureDef(friction=FRICTION), edgeShape()
    add = floor._b2Body__CreateFixture  # CreateFixture checks its arguments
    for definition.shape in ground.shapes:
        add(definition)
    definition.shape = edge
    for edge.vertex1, edge.vertex2 in ground.edges():  # at half the price of ``vertices``
        add(definition)
    return floor


def _add_part(body: WalkerBody, y: float, angle: float, fixtures: list[Any]) -> Any:
    part = body.world.CreateDynamicBody(position=(START_X, y), angle=angle, fixtures=fixtures)
    body.legs.append(part)
    part.userData = _HULL + len(body.legs)
    return part


def _add_joint(
    body: WalkerBody,
    above: tuple[Any, float],
    below: tuple[Any, float],
    speed: float,
    limits: tuple[float, float],
) -> None:
    """A motor between two parts; each comes with the joint's height above its origin."""
    joint = revoluteJointDef(
        bodyA=above[0],
        bodyB=below[0],
        localAnchorA=(0, above[1]),
        localAnchorB=(0, below[1]),
        enableMotor=True,
        enableLimit=True,
        maxMotorTorque=MOTORS_TORQUE,
        motorSpeed=speed,
        lowerAngle=limits[0],
        upperAngle=limits[1],
    )
    body.joints.append(body.world.CreateJoint(joint))


# --- the environments

RANGE = 160 / SCALE
#: The numbers of the observation that the lidar measures, and where its rays end, seen from the
#: hull: (right, down), from straight down to almost level.
LIDAR = range(14, 24)
RAYS = [(math.sin(1.5 * i / 10.0) * RANGE, math.cos(1.5 * i / 10.0) * RANGE) for i in range(10)]


class Lidar(Box2D.b2RayCastCallback):  # type: ignore[misc]
    """Rays as BipedalWalker-v3 has them: they end at the nearest ground. They also pass through the
    walker, so they are cast in a world that has only the ground.

    seen: numbers of the observation; only their rays are cast
    """

    sees_walker = False

    def __init__(self, seen: Collection[int]) -> None:
        super().__init__()
        self.rays = [(i, *RAYS[i]) for i, number in enumerate(LIDAR) if number in seen]

    def fractions(self, ray: Callable[..., None], x: float, y: float) -> list[float]:
        """The free fraction of each ray of the hull at (x, y), 0 if it is not cast."""
        measured, origin = [0.0] * len(RAYS), (x, y)
        for i, right, down in self.rays:
            self.fraction = 1.0
            ray(self, origin, (x + right, y - down))
            measured[i] = self.fraction
        return measured

    def ReportFixture(self, fixture: Any, point: Any, normal: Any, fraction: float) -> float:
        self.fraction = fraction
        return fraction


class LidarV2(Lidar):
    """Rays as version 2 had them: they end at the first ground that Box2D's tree happens to report,
    so they need the walker's own world.
    """

    sees_walker = True

    def ReportFixture(self, fixture: Any, point: Any, normal: Any, fraction: float) -> float:
        # Friction tells ground (2.5) from walker (at most 0.2), cheaper than the category bits.
        if fixture.friction < 2.0:
            return 1.0
        self.p2, self.fraction = point, fraction  # Gymnasium draws to the point
        return 0.0


def build_lidar_world(ground: Terrain) -> Any:
    """A world of the ground only, for rays: one chain has the same edges, and is cheaper."""
    world = Box2D.b2World()
    floor, chain, corner = world.CreateStaticBody(), chainShape(), Box2D.b2Vec2()
    corners = Box2D.Box2D._b2Vec2Array(len(ground.heights))
    for i, y in enumerate(ground.heights):
        corner.Set(i * STEP, y)
        corners[i] = corner
    chain._b2ChainShape__create(corners, len(ground.heights), False)
    definition = fixtureDef()
    for definition.shape in (chain, *ground.shapes):
        floor.CreateFixture(definition)
    return world


FPS = 50.0
SPEED_HIP, SPEED_KNEE = 4.0, 6.0
FINISH = (LENGTH - GRASS_LENGTH) * STEP

_f = np.float32
_ZERO, _FIVE, _SCALE, _FORWARD = _f(0), _f(5), _f(SCALE), _f(130)
_TORQUE_PRICE = _f(0.00035) * _f(MOTORS_TORQUE)
_IDLE = np.zeros(4, np.float32)
_SPEEDS = (SPEED_HIP, SPEED_KNEE, SPEED_HIP, SPEED_KNEE)


class LeanWalker:
    """BipedalWalker, normal or Hardcore, as an Environment: a new Box2D world for every episode.

    With the same random stream, observations and terminations are those of Gymnasium's class. The
    stream and the rewards (float32, in EnvPool's order) are EnvPool's. So are two last bits that
    differ from Gymnasium's: a pit's far wall, and actions below 1e-8.

    hardcore: with stumps, stairs and pits
    v2_lidar: the lidar of the old BipedalWalkerHardcore-v2
    seen: the numbers of the observation that anything reads; the lidar's others are 0
    """

    shape = BIPEDAL_WALKER
    body: WalkerBody

    def __init__(
        self, hardcore: bool, v2_lidar: bool = False, seen: Collection[int] = LIDAR
    ) -> None:
        self.hardcore = hardcore
        self._lidar = LidarV2(seen) if v2_lidar else Lidar(seen)
        self._stream = Mt19937(0)
        self._shaping = _ZERO

    def reset(self, seed: int) -> Floats:
        """Build the world of ``seed``, in [0, 2**32); returns the first observation [24]."""
        self._stream.seed(seed)
        ground = generate_terrain(self._stream, self.hardcore)
        self._draw_clouds()
        self.body = build_walker(ground, self._stream, self.shape)
        self._lidar_world = self.body.world
        if self._lidar.rays and not self._lidar.sees_walker:
            self._lidar_world = build_lidar_world(ground)
        return self.step(_IDLE)[0]

    def step(self, action: Floats) -> tuple[Floats, float, bool]:
        """Play 1/50 s with float32 ``action`` [4]; the reward is a float32 value."""
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
        self._stream.skip(CLOUD_WORDS)

    def _set_motors(self, action: Floats) -> np.float32:
        """Set the motors; returns the effort, the sum of |action|, each at most 1, in float32."""
        effort = _ZERO
        for joint, speed, power in zip(self.body.joints, _SPEEDS, action.tolist(), strict=True):
            strength = min(abs(power), 1.0)
            joint.motorSpeed = speed * sign(power)
            joint.maxMotorTorque = MOTORS_TORQUE * strength
            effort += _f(strength)
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
            *self._lidar.fractions(self._lidar_world.RayCast, x, y),
        ]
        return np.array(state, np.float32)


class LeanMarvin(LeanWalker):
    shape = MARVIN

    def __init__(self, seen: Collection[int] = LIDAR) -> None:
        super().__init__(hardcore=False, seen=seen)
