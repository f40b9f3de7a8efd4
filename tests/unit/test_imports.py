"""The house's shape, read from its imports: who may know whom, and what importing does."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
PACKAGES = ("es_queue", "master", "workers")
FILES = sorted(
    path.relative_to(HOUSE) for package in PACKAGES for path in (HOUSE / package).rglob("*.py")
)

#: Where a process connects or speaks to Redis; everyone else goes through a Channel.
SPEAKS_REDIS = {
    "es_queue/protocol/retry.py",
    "es_queue/protocol/connection.py",
    "es_queue/protocol/control_client.py",
    "es_queue/protocol/stream_entries.py",
    "es_queue/protocol/redis_channel.py",
    "es_queue/protocol/seats.py",
    "master/doctor/look.py",
    "master/status/redis_reader.py",
    "master/fleet/seat_cleaning.py",
    "master/fleet/seat_manager.py",
}
#: Name redis for types alone.
NAMES_REDIS = {"workers/hardened_worker.py", "workers/rq_job.py", "workers/seat.py"}

#: Drawing imports pygame, and the old gym is an extra.
UNASKED = ("rendered_", "gym_envs")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, whether it is for types alone) of every import in a file, wherever it stands."""
    tree = ast.parse((HOUSE / path).read_text("utf-8"))
    for_types = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), id(node) in for_types


def top(module: str) -> str:
    return module.partition(".")[0]


def test_the_house_was_found() -> None:
    assert {path.parts[0] for path in FILES} == set(PACKAGES) and len(FILES) > 50


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_import_runs_upward_or_across(path: Path) -> None:
    forbidden = {"es_queue": {"master", "workers"}, "master": {"workers"}, "workers": {"master"}}[
        path.parts[0]
    ]
    assert {
        module
        for module, _ in imports(path)
        if top(module) in forbidden | {"tests"} or module.startswith(".")
    } == set()


def test_redis_is_imported_only_where_a_process_connects() -> None:
    found = {
        (str(path), types)
        for path in FILES
        for module, types in imports(path)
        if top(module) == "redis"
    }
    assert {path for path, types in found if not types} == SPEAKS_REDIS
    assert {path for path, types in found if types} - SPEAKS_REDIS == NAMES_REDIS


def test_no_import_runs_in_a_circle() -> None:
    """At the top of modules; an import inside a function happens when both are there."""
    known = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    edges = {
        name: {module for module in at_the_top(path) if module in known and module != name}
        for name, path in known.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for following in sorted(edges[name]):
                visit(following, (*trail, name))
            done.add(name)

    for name in known:
        visit(name, ())


def at_the_top(path: Path) -> set[str]:
    """Modules that importing a file imports."""
    found: set[str] = set()
    for node in ast.parse((HOUSE / path).read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


LOOK = """
import json, os, sys, threading
before, environment, path = set(sys.modules), dict(os.environ), list(sys.path)
{what}
registry = sys.modules.get("gymnasium.envs.registration")
print(json.dumps({{
    "modules": sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}),
    "all": sorted(set(sys.modules) - before), "threads": threading.active_count(),
    "registered": [] if registry is None else [name for name in registry.registry if name.endswith("-v2") and "Walker" in name],
    "same": dict(os.environ) == environment and sys.path == path,
}}))
"""


def after(what: str) -> dict[str, object]:
    """What a fresh process looks like after a line of Python."""
    environment = {**os.environ, "PYGAME_HIDE_SUPPORT_PROMPT": "hide"}  # gymnasium sets it
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(what=what)],
        cwd=HOUSE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "what",
    [
        "import es_queue",
        "import master",
        "import workers",
        "import master.cli.main",
        "import workers.seat",
        "import workers.play.cli",
    ],
)
def test_importing_has_no_side_effect_and_loads_nothing_heavy(what: str) -> None:
    seen = after(what)
    assert set(seen["modules"]) & {"numpy", "gymnasium", "redis", "rq", "rich", "Box2D"} == set()  # type: ignore[call-overload]
    assert (seen["threads"], seen["registered"], seen["same"]) == (1, [], True)


def test_everything_can_be_imported_without_a_thread_or_a_changed_environment() -> None:
    modules = [
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in FILES
        if not path.stem.startswith(UNASKED)
    ]
    seen = after("import " + ", ".join(modules))
    assert (seen["threads"], seen["same"]) == (1, True)


def test_what_a_package_offers_is_there_when_it_is_asked_for() -> None:
    seen = after(
        "from es_queue import RunConfig, load_policy; from master import train; assert "
        "RunConfig and load_policy and train"
    )
    assert seen["threads"] == 1
    assert (
        after(
            "import es_queue, master\nfor one in (es_queue, master):\n    assert not "
            "hasattr(one, 'no_such_name')"
        )["threads"]
        == 1
    )
