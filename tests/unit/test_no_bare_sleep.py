"""Tests wait for conditions: a sleep is the pause of a loop that asks, or is what is tested."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
#: What acts slowly or hangs, how long an outage lasts, and what must not happen for a while. The
#: numbers may only fall.
EXCEPTIONS = {
    "tests/abuse/test_swollen_files.py": 1,
    "tests/faults/counted.py": 1,
    "tests/faults/scenarios/chaos.py": 1,
    "tests/faults/soak.py": 1,
    "tests/faults/trial.py": 1,
    "tests/faults/worlds.py": 4,
    "tests/tiny.py": 1,
}


def bare_sleeps(tree: ast.AST, inside_loop: bool = False) -> Iterator[int]:
    """The lines of the sleeps that are in no ``while`` or ``for``."""
    for node in ast.iter_child_nodes(tree):
        is_sleep = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("sleep")
        if is_sleep and not inside_loop:
            yield node.lineno
        yield from bare_sleeps(node, inside_loop or isinstance(node, ast.While | ast.For))


def test_no_test_sleeps_instead_of_waiting_for_what_it_needs() -> None:
    files = [*(HOUSE / "tests").rglob("*.py"), *(HOUSE / "tools").rglob("test_*.py")]
    sleeps = {
        str(path.relative_to(HOUSE)): [*bare_sleeps(ast.parse(path.read_text("utf-8")))]
        for path in files
    }
    counts = Counter({path: len(lines) for path, lines in sleeps.items() if lines})
    assert {path: sleeps[path] for path in counts - Counter(EXCEPTIONS)} == {}, (
        "wait for a condition (tests.tiny.eventually)"
    )
