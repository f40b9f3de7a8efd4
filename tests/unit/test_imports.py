"""The house's shape, read from its imports: who may know whom, and what importing does."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from es_queue.config.algorithms.facts import POLICIES, STRATEGIES
from tests.cases import each_case

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
NAMES_REDIS = {
    "es_queue/protocol/replica.py",
    "workers/hardened_worker.py",
    "workers/open_seat.py",
    "workers/rq_job.py",
}

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


@each_case("path", FILES)
def test_no_import_runs_upward_or_across(path: Path) -> None:
    forbidden = {"es_queue": {"master", "workers"}, "master": {"workers"}, "workers": {"master"}}[
        path.parts[0]
    ]
    assert {
        module
        for module, _ in imports(path)
        if top(module) in forbidden | {"tests"} or module.startswith(".")
        if (path, module) != SANCTIONED
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


#: The public face: ``from es_queue import train``. No other file of es_queue imports master.
SANCTIONED = (Path("es_queue/__init__.py"), "master.run.training")
MODULES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}


def imported_files(name: str) -> set[str]:
    """Modules of ours that a module imports anywhere: at its top, in functions, or for types.

    Importing ``a.b.c`` runs the ``__init__`` of ``a`` and ``a.b`` first, so these count, unless
    the module lies in that package itself.
    """
    path, modules = MODULES[name], set[str]()
    for node in ast.walk(ast.parse((HOUSE / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (path, node.module) != SANCTIONED:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= members & MODULES.keys() or {node.module or ""}
    parents = {
        ".".join(module.split(".")[:depth])
        for module in modules & MODULES.keys()
        for depth in range(1, module.count(".") + 1)
    }
    inherited = {parent for parent in parents if not f"{name}.".startswith(f"{parent}.")}
    return (modules | inherited) & MODULES.keys() - {name}


def find_circle(edges: dict[str, set[str]]) -> list[str]:
    """The modules of a circle in order, the first one again at the end; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for following in sorted(edges[name]):
            if circle := visit(following, [*trail, name]):
                return circle
        done.add(name)
        return []

    return next(filter(None, (visit(name, []) for name in edges)), [])


def test_no_import_runs_in_a_circle() -> None:
    """Imports inside functions and those for types count too."""
    assert " → ".join(find_circle({name: imported_files(name) for name in MODULES})) == ""


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert imported_files("master.sweep.loop") >= {"master.sweep.table", "es_queue"}
    assert imported_files("workers.play.cli") >= {"workers.play.reconstruct"}


REASON = re.compile(r"# (start-up|optional): \S")


def unexplained_imports(path: Path) -> list[int]:
    """Lines of imports inside functions without a comment ``# start-up: …`` or ``# optional: …``
    on them or above their group.
    """
    lines = (HOUSE / path).read_text("utf-8").split("\n")
    tree = ast.parse("\n".join(lines))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    imported = {
        node.lineno: node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    explained = {
        line
        for node in imported.values()
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if any(REASON.search(text) for text in lines[node.lineno - 1 : node.end_lineno])
    }
    unexplained = []
    for number in sorted(imported):
        above = number - 1
        while lines[above - 1].strip()[:1] in ("", "#") and not REASON.search(lines[above - 1]):
            above -= 1
        if number in explained or above in explained or REASON.search(lines[above - 1]):
            end = imported[number].end_lineno or number
            explained |= set(range(number, end + 1))
        else:
            unexplained.append(number)
    return unexplained


def test_an_import_inside_a_function_says_why_it_is_there() -> None:
    numbers = {str(path): unexplained_imports(path) for path in FILES}
    assert {path: lines for path, lines in numbers.items() if lines} == {}


LOOK = """
import json, os, sys, threading
before, environment, path = set(sys.modules), dict(os.environ), list(sys.path)
{what}
registry = sys.modules.get("gymnasium.envs.registration")
print(json.dumps({{
    "modules": sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}),
    "all": sorted(set(sys.modules) - before), "threads": threading.active_count(),
    "registered": [] if registry is None else [
        name for name in registry.registry if name.endswith("-v2") and "Walker" in name
    ],
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


@each_case(
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


def test_a_worker_that_serves_no_metrics_does_not_load_their_library() -> None:
    seen = after("import workers.serving, workers.hardened_worker")
    assert {"numpy", "rq"} <= set(seen["modules"])  # type: ignore[call-overload]
    assert "prometheus_client" not in seen["modules"]  # type: ignore[operator]


def test_a_seat_imports_no_strategy_policy_or_game_before_its_run_names_one() -> None:
    paths = [facts.path for facts in (*STRATEGIES.values(), *POLICIES.values())]
    owners = {path.partition(":")[0] for path in paths} | {
        "es_queue.environments.atari.game",
        "es_queue.genetics.seed_list",
    }
    assert owners & set(after("import workers.seat, workers.serving")["all"]) == set()  # type: ignore[call-overload]


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
        "from es_queue import RunConfig, load_policy, train; from master import train as same; "
        "assert RunConfig and load_policy and train is same"
    )
    assert seen["threads"] == 1
    assert (
        after(
            "import es_queue, master\nfor one in (es_queue, master):\n    assert not "
            "hasattr(one, 'no_such_name')"
        )["threads"]
        == 1
    )
