"""An object is whole when its constructor returns: nobody assigns another object's attribute. A
function has at most seven parameters, and a class that is no record at most twelve attributes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
PACKAGES = ("es_queue", "master", "workers")
#: Attributes that are assigned on objects of other libraries, and whose they are: such objects are
#: set the way those libraries want. There is none of our own.
THIRD_PARTY = {
    "es_queue/environments/cartpole_vector.py": {
        "physics.action_space": "Gymnasium's CartPoleVectorEnv",
        "physics.prev_done": "Gymnasium's CartPoleVectorEnv",
        "physics.state": "Gymnasium's CartPoleVectorEnv",
        "physics.steps": "Gymnasium's CartPoleVectorEnv",
    },
    "es_queue/environments/gym_compat/old_gym.py": {
        "importlib.import_module('gym.envs.box2d.lunar_lander').np": "gym's module",
        "innermost.reset": "an environment of the old gym",
    },
    "es_queue/environments/reference_batch.py": {"batch.flags.writeable": "numpy's array"},
    "es_queue/environments/walker/lean_walker.py": {
        "joint.maxMotorTorque": "Box2D's joint",
        "joint.motorSpeed": "Box2D's joint",
    },
    "es_queue/environments/walker/rendered_marvin.py": {
        "self._canvas.cloud_poly": "Gymnasium's BipedalWalker",
    },
    "es_queue/environments/walker/rendered_walker.py": {
        "self._canvas.cloud_poly": "Gymnasium's BipedalWalker",
        "self._canvas.drawlist": "Gymnasium's BipedalWalker",
        "self._canvas.lidar": "Gymnasium's BipedalWalker",
        "self._canvas.lidar_render": "Gymnasium's BipedalWalker",
        "self._canvas.scroll": "Gymnasium's BipedalWalker",
        "self._canvas.terrain_poly": "Gymnasium's BipedalWalker",
    },
    "es_queue/environments/walker/walker_body.py": {
        "definition.shape.vertices": "Box2D's fixture definition",
        "hull.userData": "Box2D's body",
        "part.userData": "Box2D's body",
        "polygon.vertices": "Box2D's polygon",
        "world.contactListener": "Box2D's world",
    },
    "es_queue/numerics/noise_table.py": {"values.flags.writeable": "numpy's array"},
    "es_queue/policies/numpy_policy.py": {"rows.flags.writeable": "numpy's array"},
    "es_queue/security/tls_diagnosis.py": {
        "context.check_hostname": "ssl's context",
        "context.verify_mode": "ssl's context",
    },
    "es_queue/testing.py": {"array.flags.writeable": "numpy's array"},
    "master/cli/main.py": {"sys.path": "Python's list of folders"},
    "master/collect/verifier.py": {"alarm.daemon": "threading's timer"},
    "master/display/notes.py": {"LOGGER.propagate": "logging's logger"},
    "master/status/web/server.py": {"channel.will_close": "waitress's channel"},
    "workers/hardened_worker.py": {"job.origin": "RQ's job"},
    "workers/play/cli.py": {"given.episodes": "argparse's namespace"},
}

MOST_PARAMETERS, MOST_ATTRIBUTES = 7, 12
TREES = {
    str(path.relative_to(HOUSE)): ast.parse(path.read_text("utf-8"))
    for package in PACKAGES
    for path in sorted((HOUSE / package).rglob("*.py"))
}


def foreign_assignments(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Each attribute that is assigned on anything but ``self`` and ``cls``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                continue
            case ast.Attribute(ctx=ast.Store()):
                yield node


def test_nobody_assigns_the_attribute_of_another_object_of_ours() -> None:
    assigned = {
        path: {ast.unparse(node) for node in foreign_assignments(tree)}
        for path, tree in TREES.items()
    }
    known = {path: set(attributes) for path, attributes in THIRD_PARTY.items()}
    assert {path: names for path, names in assigned.items() if names} == known


def test_each_way_of_assigning_an_attribute_is_seen() -> None:
    text = """
a.b = c.d[0] = 1
e.f, (self.g, *h.i) = 1, (2, 3)
j.k += 1
l.m: int = 2
for n.o in p.q: pass
with r.s as t.u: self.v = 1
self.w.x = 1
"""
    names = {node.attr for node in foreign_assignments(ast.parse(text))}
    assert names == set("bfikmoux")


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without ``self`` and ``cls``."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(parameter.arg not in ("self", "cls") for parameter in parameters)


def own_attributes(kind: ast.ClassDef) -> set[str]:
    """What its methods assign on ``self``; empty for a dataclass."""
    if any("dataclass" in ast.unparse(decorator) for decorator in kind.decorator_list):
        return set()
    return {
        node.attr
        for node in ast.walk(kind)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def test_no_function_has_more_than_seven_parameters() -> None:
    assert [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if count_parameters(node) > MOST_PARAMETERS
    ] == []


def test_no_class_that_is_no_record_has_more_than_twelve_attributes() -> None:
    assert [
        f"{path} {node.name}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and len(own_attributes(node)) > MOST_ATTRIBUTES
    ] == []
