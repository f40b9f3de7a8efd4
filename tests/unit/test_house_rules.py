"""An object is whole when its constructor returns: nobody assigns another object's attribute."""

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
    "master/status/command.py": 1,
    "master/status/web/server.py": 1,
    "workers/hardened_worker.py": 1,
    "workers/play/cli.py": 1,
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
        str(path.relative_to(HOUSE)): [ast.unparse(node) for node in foreign_assignments(tree)]
        for package in PACKAGES
        for path in sorted((HOUSE / package).rglob("*.py"))
        if (tree := ast.parse(path.read_text("utf-8")))
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
