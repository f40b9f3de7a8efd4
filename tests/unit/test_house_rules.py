"""An object is whole when its constructor returns: nobody assigns another object's attribute. A
function has at most seven parameters, and a class that is no record at most twelve attributes.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
PACKAGES = ("es_queue", "master", "workers")
#: How often each file still does it. Objects of other libraries are set the way those libraries
#: want; the numbers of our own may only fall.
EXCEPTIONS = {
    "es_queue/environments/cartpole_vector.py": 4,
    "es_queue/environments/gym_compat/old_gym.py": 2,
    "es_queue/environments/reference_batch.py": 1,
    "es_queue/environments/walker/lean_walker.py": 3,
    "es_queue/environments/walker/rendered_marvin.py": 1,
    "es_queue/environments/walker/rendered_walker.py": 6,
    "es_queue/environments/walker/walker_body.py": 5,
    "es_queue/numerics/noise_table.py": 1,
    "es_queue/policies/checkpoint_policy.py": 1,
    "es_queue/policies/numpy_policy.py": 1,
    "es_queue/protocol/stream_entries.py": 1,
    "es_queue/security/tls_diagnosis.py": 2,
    "es_queue/testing.py": 1,
    "master/cli/main.py": 1,
    "master/collect/verifier.py": 1,
    "master/display/notes.py": 1,
    "master/status/web/server.py": 1,
    "workers/hardened_worker.py": 1,
    "workers/play/cli.py": 1,
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


def test_nobody_assigns_the_attribute_of_another_object() -> None:
    assigned = {
        path: [ast.unparse(node) for node in foreign_assignments(tree)]
        for path, tree in TREES.items()
    }
    counts = Counter({path: len(names) for path, names in assigned.items() if names})
    assert {path: assigned[path] for path in counts - Counter(EXCEPTIONS)} == {}


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
