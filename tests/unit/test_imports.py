"""Imports run one way, never in a circle, and importing changes nothing."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from es_queue.config.run_config import POLICIES, STRATEGIES
from tests.cases import each_case

HOUSE = Path(__file__).resolve().parents[2]
PACKAGES = ("es_queue", "master", "workers")
FILES = sorted(
    path.relative_to(HOUSE) for package in PACKAGES for path in (HOUSE / package).rglob("*.py")
)
MODULES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
FORBIDDEN = {"es_queue": {"master", "workers"}, "master": {"workers"}, "workers": {"master"}}
#: The public face: ``from es_queue import AskTell, train``. No other file of es_queue imports more.
FACE, SANCTIONED = Path("es_queue/__init__.py"), {"master.run.training", "workers.ask_tell"}
#: Drawing imports pygame, and the old gym is an extra.
UNASKED = ("rendered_", "gym_envs")


def import_statements(path: Path) -> list[tuple[str, list[str]]]:
    """(module, imported names) of every import of a file, also inside functions."""
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse((HOUSE / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.append((module, [alias.name for alias in node.names]))
    return [(module, names) for module, names in found if path != FACE or module not in SANCTIONED]


def test_imports_run_from_master_and_workers_to_es_queue_only() -> None:
    assert {path.parts[0] for path in FILES} == set(PACKAGES)
    wrong = [
        f"{path}: {module}"
        for path in FILES
        for module, _ in import_statements(path)
        if module.startswith(".")
        or module.partition(".")[0] in FORBIDDEN[path.parts[0]] | {"tests", "tools"}
    ]
    assert wrong == []


def imported_files(name: str) -> set[str]:
    """Our modules that a module imports. Importing ``a.b.c`` runs the ``__init__`` of ``a`` and
    ``a.b`` first, so these count, unless the module lies in that package itself.
    """
    modules = set[str]()
    for module, names in import_statements(MODULES[name]):
        modules |= {f"{module}.{member}" for member in names} & MODULES.keys() or {module}
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
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert " → ".join(find_circle({name: imported_files(name) for name in MODULES})) == ""


#: es_queue from the bottom up. A layer imports those below it, and its own.
LAYERS = (
    "errors text files credentials private_files host command_line backends hooks",
    "numerics",
    "config user_code environments.episode_rules",
    "protocol acl run_folder genetics slot_plan",
    "environments.interface",
    "policies",
    "environments strategies",
    "slots slot_record seed_list export testing pretrained models",
)


def layer(module: str) -> int | None:
    """The place in LAYERS of a module of es_queue; None for others and for es_queue itself."""
    fitting = [
        (len(name), place)
        for place, names in enumerate(LAYERS)
        for name in names.split()
        if f"{module}.".startswith(f"es_queue.{name}.")
    ]
    return max(fitting)[1] if fitting else None


def test_es_queue_imports_only_downwards() -> None:
    """Imports inside functions count, those for types do not."""
    known = [name for name in MODULES if name.startswith("es_queue.")]
    assert [name for name in known if layer(name) is None] == []
    wrong = []
    for name in known:
        tree = ast.parse((HOUSE / MODULES[name]).read_text("utf-8"))
        for_types = [
            node
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for node in block.body
        ]
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node in for_types:
                continue
            for member in node.names:
                imported = layer(f"{node.module}.{member.name}")
                if imported is not None and imported > (layer(name) or 0):
                    wrong.append(f"{name} imports {node.module}")
    assert wrong == []


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
    """State of a fresh process after a line of Python."""
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
        "import workers.es_play",
    ],
)
def test_importing_has_no_side_effect_and_loads_nothing_heavy(what: str) -> None:
    seen = after(what)
    assert set(seen["modules"]) & {"numpy", "gymnasium", "redis", "rq", "rich", "Box2D"} == set()  # type: ignore[call-overload]
    assert (seen["threads"], seen["registered"], seen["same"]) == (1, [], True)


def test_es_worker_loads_numpy_only_after_it_has_fixed_the_numeric_environment() -> None:
    seen = after("import workers.es_worker")
    assert set(seen["modules"]) & {"numpy", "rq", "gymnasium"} == set()  # type: ignore[call-overload]


def test_a_seat_imports_no_strategy_policy_or_game_before_its_run_names_one() -> None:
    owners = {kind.__module__ for kind in (*STRATEGIES.values(), *POLICIES.values())}
    owners |= {"es_queue.seed_list"}
    assert owners & set(after("import workers.seat, workers.serving")["all"]) == set()  # type: ignore[call-overload]


def test_everything_can_be_imported_without_a_thread_or_a_changed_environment() -> None:
    modules = [name for name, path in MODULES.items() if not path.stem.startswith(UNASKED)]
    seen = after("import " + ", ".join(modules))
    assert (seen["threads"], seen["same"]) == (1, True)
