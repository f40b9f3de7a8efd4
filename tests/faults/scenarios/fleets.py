"""Workers with another version of es-queue. They refuse and are named; the others go on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import es_queue
from tests.faults.scenario import RUN, Arena, Row, Stopwatch, finish, scenario
from tests.integration.processes import NERVOUS, Seen, wait_for

TREE = Path(es_queue.__file__).parent.parent


def other_settings(folder: Path) -> dict[str, str]:
    """es-queue 0.0.1: the packages of this tree, with settings that have an option less."""
    tree = folder / "old"
    for package in ("es_queue", "workers"):
        shutil.copytree(
            TREE / package, tree / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    path = tree / "es_queue/config/run_config.py"
    option = r"(?ms)^    strict: bool = setting\(\n.*?^    \)\n"
    text, changed = re.subn(option, "", path.read_text())
    assert changed
    path.write_text(text)
    start = tree / "es_queue" / "__init__.py"
    start.write_text(re.sub(r'__version__ = "[^"]*"', '__version__ = "0.0.1"', start.read_text()))
    return {"PYTHONPATH": str(tree)}


@scenario("worker whose es-queue cannot read the settings (refuses)", quick=2, full=4)
def settings(arena: Arena, count: int) -> Row:
    """``count`` such workers beside one that fits: each refuses and takes no block, and the master
    names them.
    """
    said = (
        "es-queue 0.0.1 here cannot read the run's (the stored configuration has the unknown "
        "option 'strict'"
    )
    row, values = Row("", injected=count), {**RUN, "generations": 20}
    url = arena.server()
    environment = other_settings(arena.folder)
    master, seen = arena.started("mixed", url, values)
    odd = [arena.processes.worker(url, clocks=NERVOUS, **environment) for _ in range(count)]
    watch = Stopwatch()
    wait_for(lambda: len(refusing(seen, said)) == count, "they refuse")
    named = f"{count} worker{'s' if count > 1 else ''} on "
    wait_for(
        lambda: any(
            one["text"].startswith(named) and said in one["text"] for one in master.events("note")
        ),
        "the master names them",
    )
    row.seconds.append(watch.seconds())
    row.noticed = count
    arena.processes.worker(url, clocks=NERVOUS)
    finish(row, master, values)
    workers = {int(one["workers"]) for one in master.events("generation") if one["population"]}
    assert workers == {1}, "no answer of theirs counted"
    assert all(one.process.poll() is None for one in odd)
    return row


def refusing(seen: Seen, said: str) -> list[str]:
    return [name for name, about in alive(seen).items() if said in about.get("refuses", "")]


def alive(seen: Seen) -> dict[str, dict[str, str]]:
    names = [name.decode() for name in seen.client.smembers(seen.keys.workers)]
    found = {name: seen.client.hgetall(seen.keys.worker(name)) for name in names}
    return {
        name: {key.decode(): value.decode() for key, value in about.items()}
        for name, about in found.items()
    }
