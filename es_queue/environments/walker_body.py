"""BipedalWalker's Box2D world: the ground, a hull, two legs of two parts, four motors."""

# ruff: noqa: N802 - Box2D calls its listeners by these names.

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import Box2D
from Box2D.b2 import edgeShape, fixtureDef, polygonShape, revoluteJointDef

from es_queue.environments.stream import StandardStream
from es_queue.environments.terrain import HEIGHT, SCALE, START_PAD, STEP, Terrain

MOTORS_TORQUE = 80.0
INITIAL_RANDOM = 5.0
LEG_DOWN = -8 / SCALE
LEG_W, LEG_H = 8 / SCALE, 34 / SCALE
START_X, START_Y = STEP * START_PAD / 2, HEIGHT + 2 * LEG_H
FRICTION = 2.5

_HULL, _FEET = 1, (3, 5)
#: The walker's parts collide with the ground alone, never with each other.
_WALKER = {"categoryBits": 0x0020, "maskBits": 0x001, "restitution": 0.0}
_HULL_POLYGON = [(x / SCALE, y / SCALE) for x, y in [(-30, 9), (6, 9), (34, 1), (34, -8), (-30, -8)]]
_HULL_FIXTURE = fixtureDef(shape=polygonShape(vertices=_HULL_POLYGON), density=5.0, friction=0.1, **_WALKER)
_UPPER_FIXTURE = fixtureDef(shape=polygonShape(box=(LEG_W / 2, LEG_H / 2)), density=1.0, **_WALKER)
_LOWER_FIXTURE = fixtureDef(shape=polygonShape(box=(0.8 * LEG_W / 2, LEG_H / 2)), density=1.0, **_WALKER)


class Contacts(Box2D.b2ContactListener):  # type: ignore[misc]
    """Remembers whether the hull touched the ground, and which foot stands on it (1.0) or not (0.0).

    A foot counts as lifted when any of its contacts ends, though another may last: so it is in Gymnasium.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fallen = False
        self.standing = [0.0, 0.0]

    def BeginContact(self, contact: Any) -> None:
        part = _part(contact)
        if part == _HULL:
            self.fallen = True
        elif part in _FEET:
            self.standing[_FEET.index(part)] = 1.0

    def EndContact(self, contact: Any) -> None:
        part = _part(contact)
        if part in _FEET:
            self.standing[_FEET.index(part)] = 0.0

    # Called for each contact in each step, to no purpose of ours. A function in C costs least, and it runs no
    # Python bytecode: in that a signal's handler could raise (Ctrl-C, a job's timeout), and an exception that
    # passes through Box2D's solver at this point aborts the process.
    PreSolve = staticmethod(operator.is_)
    PostSolve = staticmethod(operator.is_)


def _part(contact: Any) -> int:
    """Which part of the walker touches the ground; the ground's own number is None."""
    part: int = contact.fixtureA.body.userData or contact.fixtureB.body.userData
    return part


@dataclass
class Body:
    """One episode's world. joints: hip, knee of the first leg, hip, knee of the second."""

    world: Any
    terrain: Terrain
    floor: Any
    hull: Any
    legs: list[Any]
    joints: list[Any]
    contacts: Contacts


def build(ground: Terrain, stream: StandardStream) -> Body:
    """Put a walker onto ``ground`` and push it with a random force drawn from ``stream``.

    The order in which fixtures are made decides the order in which Box2D solves contacts: keep it.
    """
    world, contacts = Box2D.b2World(), Contacts()
    world.contactListener = contacts
    floor = _lay(world, ground)
    hull = world.CreateDynamicBody(position=(START_X, START_Y), fixtures=_HULL_FIXTURE)
    hull.userData = _HULL
    hull.ApplyForceToCenter((stream.uniform(-INITIAL_RANDOM, INITIAL_RANDOM), 0), True)
    body = Body(world, ground, floor, hull, [], [], contacts)
    for side in (-1, 1):
        _add_leg(body, side)
    return body


def _lay(world: Any, ground: Terrain) -> Any:
    """All of the ground as one static body: Gymnasium's 200 bodies give the same bits and take longer."""
    floor = world.CreateStaticBody()
    polygon, edge = polygonShape(), edgeShape()
    for vertices in ground.polygons:
        polygon.vertices = vertices
        floor.CreateFixture(fixtureDef(shape=polygon, friction=FRICTION))
    definition = fixtureDef(shape=edge, friction=FRICTION)
    for ends in ground.edges():
        definition.shape.vertices = ends
        floor.CreateFixture(definition)
    return floor


def _add_leg(body: Body, side: int) -> None:
    upper = _add_part(body, START_Y - LEG_H / 2 - LEG_DOWN, side * 0.05, _UPPER_FIXTURE)
    _add_joint(body, body.hull, upper, LEG_DOWN, float(side), (-0.8, 1.1))
    lower = _add_part(body, START_Y - LEG_H * 3 / 2 - LEG_DOWN, side * 0.05, _LOWER_FIXTURE)
    _add_joint(body, upper, lower, -LEG_H / 2, 1.0, (-1.6, -0.1))


def _add_part(body: Body, y: float, angle: float, fixture: Any) -> Any:
    part = body.world.CreateDynamicBody(position=(START_X, y), angle=angle, fixtures=fixture)
    body.legs.append(part)
    part.userData = _HULL + len(body.legs)
    return part


def _add_joint(
    body: Body, above: Any, below: Any, anchor: float, speed: float, limits: tuple[float, float]
) -> None:
    joint = revoluteJointDef(
        bodyA=above,
        bodyB=below,
        localAnchorA=(0, anchor),
        localAnchorB=(0, LEG_H / 2),
        enableMotor=True,
        enableLimit=True,
        maxMotorTorque=MOTORS_TORQUE,
        motorSpeed=speed,
        lowerAngle=limits[0],
        upperAngle=limits[1],
    )
    body.joints.append(body.world.CreateJoint(joint))
