"""A walker's Box2D world: ground, hull, two legs of two parts, four motors; and BipedalWalker's
shape.
"""

# ruff: noqa: N802 - Box2D calls its listeners by these names.

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import Box2D
from Box2D.b2 import edgeShape, fixtureDef, polygonShape, revoluteJointDef

from es_queue.environments.walker.mt19937 import Mt19937
from es_queue.environments.walker.terrain import HEIGHT, SCALE, START_PAD, STEP, Terrain

MOTORS_TORQUE = 80.0
INITIAL_RANDOM = 5.0
LEG_DOWN = -8 / SCALE
LEG_W, LEG_H = 8 / SCALE, 34 / SCALE
START_X = STEP * START_PAD / 2
FRICTION = 2.5

_HULL, _FEET = 1, (3, 5)
#: The walker's parts collide with the ground alone, never with each other.
_WALKER = {"categoryBits": 0x0020, "maskBits": 0x001, "restitution": 0.0}


def make_fixture(polygon: list[tuple[float, float]], density: float, **more: float) -> Any:
    """A convex piece of a walker: corners in pixels from its body's origin, density in kg/m²."""
    vertices = [(x / SCALE, y / SCALE) for x, y in polygon]
    return fixtureDef(shape=polygonShape(vertices=vertices), density=density, **more, **_WALKER)


@dataclass(frozen=True)
class WalkerShape:
    """The parts of one walker's body; lengths in metres.

    hull, upper, lower: the convex pieces of the trunk, of a thigh and of a shank
    knee:   distances from a thigh's origin down to the knee, and from the knee down to the shank's
    origin
    height: of the hull's origin above level ground at the start of an episode
    hips:   the hip motors' speed at the start, rad/s
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


class ContactTracker(Box2D.b2ContactListener):  # type: ignore[misc]
    """Tracks whether the hull touched the ground, and which feet touch it (1.0 or 0.0).

    As in Gymnasium, a foot counts as lifted when any of its contacts ends, even if another remains.
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

    # Called for each contact in each step, to no purpose of ours. A function in C costs least, and
    # it runs no Python bytecode: in that a signal's handler could raise (Ctrl-C, a job's timeout),
    # and an exception that passes through Box2D's solver at this point aborts the process.
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


def build_walker(
    ground: Terrain, stream: Mt19937, shape: WalkerShape = BIPEDAL_WALKER
) -> WalkerBody:
    """Put a walker onto ``ground`` and push it with a random force drawn from ``stream``.

    The order in which fixtures are made decides the order in which Box2D solves contacts: keep it.
    """
    world, contacts = Box2D.b2World(), ContactTracker()
    world.contactListener = contacts
    floor = build_ground(world, ground)
    hull = world.CreateDynamicBody(position=(START_X, HEIGHT + shape.height), fixtures=shape.hull)
    hull.userData = _HULL
    hull.ApplyForceToCenter((stream.uniform(-INITIAL_RANDOM, INITIAL_RANDOM), 0), True)
    body = WalkerBody(world, ground, floor, hull, [], [], contacts)
    for side in (-1, 1):
        _add_leg(body, shape, side)
    return body


def build_ground(world: Any, ground: Terrain) -> Any:
    """The whole ground as one static body: Gymnasium's 200 bodies give the same bits and take
    longer.
    """
    floor = world.CreateStaticBody()
    polygon, edge = polygonShape(), edgeShape()
    for vertices in ground.polygons:
        polygon.vertices = vertices
        floor.CreateFixture(fixtureDef(shape=polygon, friction=FRICTION))
    definition = fixtureDef(shape=edge, friction=FRICTION)
    edge = definition.shape  # its ends are set one by one, at half the price of ``vertices``
    for edge.vertex1, edge.vertex2 in ground.edges():
        floor.CreateFixture(definition)
    return floor


def _add_leg(body: WalkerBody, shape: WalkerShape, side: int) -> None:
    hip = HEIGHT + shape.height - LEG_DOWN
    upper = _add_part(body, hip - LEG_H / 2, side * 0.05, shape.upper)
    _add_joint(body, (body.hull, LEG_DOWN), (upper, LEG_H / 2), side * shape.hips, (-0.8, 1.1))
    lower = _add_part(body, hip - LEG_H * 3 / 2, side * 0.05, shape.lower)
    _add_joint(body, (upper, -shape.knee), (lower, shape.knee), 1.0, (-1.6, -0.1))


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
