"""Workers that differ: another noise table, another version of es-queue. They refuse and are named;
the others go on.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import es_queue
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from tests.faults.scenario import RUN, Arena, Row, Stopwatch, finish, noise_folder, scenario
from tests.integration.processes import NERVOUS, Seen, wait_for

TREE = Path(es_queue.__file__).parent.parent


def other_noise(folder: Path) -> dict[str, str]:
    """A noise table that another build of numpy has made, as its digest says."""
    noise = folder / "noise"
    shutil.copytree(noise_folder(), noise)
    noise.chmod(0o700)
    for path in noise.glob("*.json"):
        about = json.loads(path.read_text())
        path.write_text(json.dumps({**about, "digest": "0" * 32}))
    return {FOLDER_VARIABLE: str(noise)}


def other_version(folder: Path, file: str, pattern: str, by: str) -> dict[str, str]:
    """es-queue 0.0.1: the packages of this tree with one change."""
    tree = folder / "old"
    for package in ("es_queue", "workers"):
        shutil.copytree(
            TREE / package, tree / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    path = tree / file
    text, changed = re.subn(pattern, by, path.read_text())
    assert changed, pattern
    path.write_text(text)
    start = tree / "es_queue" / "__init__.py"
    start.write_text(re.sub(r'__version__ = "[^"]*"', '__version__ = "0.0.1"', start.read_text()))
    return {"PYTHONPATH": str(tree)}


def other_task(folder: Path) -> dict[str, str]:
    """A protocol whose task has a field less."""
    return other_version(
        folder,
        "es_queue/protocol/messages.py",
        r'(?m)^ +(poll: float|"poll": _real,)\n|or not 0 < task\.poll <= 60 ',
        "",
    )


def other_settings(folder: Path) -> dict[str, str]:
    """Settings that have an option less."""
    return other_version(
        folder,
        "es_queue/config/run_config.py",
        r"(?ms)^    rollback: bool = setting\(\n.*?^    \)\n",
        "",
    )


def refused(
    arena: Arena, count: int, different: Callable[[Path], dict[str, str]], said: str
) -> Row:
    """``count`` such workers beside one that fits: each refuses and takes no block, and the master
    names them.
    """
    row, values = Row("", injected=count), {**RUN, "generations": 20}
    url = arena.server()
    environment = different(arena.folder)
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


@scenario("worker with another noise table (refuses)", quick=2, full=4)
def noise(arena: Arena, count: int) -> Row:
    return refused(arena, count, other_noise, "noise digest: this host's table is 00000000")


@scenario("worker whose es-queue cannot read the task (refuses)", quick=2, full=4)
def task(arena: Arena, count: int) -> Row:
    return refused(arena, count, other_task, "es-queue 0.0.1 here cannot read the run's task")


@scenario("worker whose es-queue cannot read the settings (refuses)", quick=2, full=4)
def settings(arena: Arena, count: int) -> Row:
    return refused(
        arena,
        count,
        other_settings,
        (
            "es-queue 0.0.1 here cannot read the run's (the stored configuration has the unknown "
            "option 'rollback'"
        ),
    )
