"""Clocks that are wrong by an hour, or jump while the run goes on: of a worker, of the master, of
the host of Redis.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from master.services.private_server import server_binary
from tests.faults.scenario import RUN, Arena, Row, finish, scenario
from tests.integration.processes import CLOCKS, Seen, Started, wait_for

HOUR = 3600
LIBRARIES = tuple(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
#: An overdue block is no matter of clocks, and a busy machine has some.
CALM = replace(CLOCKS, overdue=60.0)
VALUES: dict[str, Any] = {**RUN, "generations": 30}

#: What a clock that jumps ahead costs on its own host: episodes, and no bit.
WHY = "keys expire by the server's clock, and RQ ends a work horse by its own"

#: Python reads it before anything else. (libfaketime makes Python's sleep fail, which waits by the
#: monotonic clock.)
WRONG = """
import datetime, pathlib, time

right = time.time
path = pathlib.Path(__file__).with_name("clock")

def wrong():
    return right() + float(path.read_text())

class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(wrong(), tz)

    @classmethod
    def utcnow(cls):
        return cls.utcfromtimestamp(wrong())

time.time, time.time_ns, datetime.datetime = wrong, lambda: int(1e9 * wrong()), Wrong
"""


class Skew:
    """A clock that is wrong by what a file says; monotonic clocks stay right."""

    def __init__(self, arena: Arena, seconds: int) -> None:
        self._folder = arena.folder / "skew"
        self._folder.mkdir(exist_ok=True)
        (self._folder / "sitecustomize.py").write_text(WRONG)
        self.jump(seconds)

    def jump(self, seconds: int) -> None:
        fresh = self._folder / "clock.new"
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self._folder / "clock")

    def python(self) -> dict[str, str]:
        """The environment of a Python process with that clock."""
        return {"PYTHONPATH": str(self._folder)}

    def server(self, arena: Arena) -> str:
        """The URL of a private server with that clock: the wheel's, for libfaketime and jemalloc
        wait for each other.
        """
        about = {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._folder / "clock"),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        path = self._folder / "redis.sock"
        command = (
            server_binary(),
            "--port",
            0,
            "--unixsocket",
            path,
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            self._folder,
        )
        process = arena.processes.start(*command, **about)
        arena.stack.callback(process.process.kill)
        wait_for(path.exists, "the server listens", 20)
        return f"unix://{path}"


def skewed(arena: Arena, who: str, first: int) -> tuple[Started, Seen, Skew, bool]:
    """A run in which one clock is wrong, and whether it shows: the master, the run, the clock."""
    skew, name = Skew(arena, first), f"{who}-{abs(first)}-{first > 0:d}"
    url = skew.server(arena) if who == "redis" else arena.server()
    master, seen = arena.started(
        name, url, VALUES, clocks=CALM, **(skew.python() if who == "master" else {})
    )
    seats = [
        seen.joined(
            arena.processes.worker(
                url, clocks=CALM, **(skew.python() if who == "worker" and not number else {})
            )
        )
        for number in range(2)
    ]
    wait_for(seen.has_reached(3), "generation 3")
    return master, seen, skew, abs(clock_of(who, seen, seats[0]) - time.time() - first) < HOUR / 2


def clock_of(who: str, seen: Seen, seat: str) -> float:
    """What time one of them has it, as the run shows it."""
    if who == "redis":
        return float(seen.client.time()[0])
    return float(seen.progress()["updated"] if who == "master" else seen.workers()[seat]["joined"])


def register(who: str, of: str, needs: str) -> None:
    @scenario(f"clock of {of} jumps by two hours in the run", quick=1, full=4, needs=needs)
    def jumping(arena: Arena, count: int) -> Row:
        row = Row("", injected=count, equal=True)
        for number in range(count):
            first = -HOUR if number % 2 == 0 else HOUR
            master, seen, skew, shown = skewed(arena, who, first)
            jumped(seen, skew, -first)
            ended(row, master, seen, calm=who == "master", shown=shown)
        return row


def jumped(seen: Seen, skew: Skew, seconds: int) -> None:
    """Jump while a worker holds a block and the master has seen that; nobody has reason to take it
    away.
    """
    horse = seen.freeze_holding(sorted(seen.workers())[0])
    for _ in range(3):
        renewed(seen)
    skew.jump(seconds)
    for _ in range(3):
        renewed(seen)
    os.kill(horse, signal.SIGCONT)


def renewed(seen: Seen) -> None:
    """Wait until the master has shown its progress once more."""
    before = seen.progress()["updated"]
    wait_for(lambda: seen.progress()["updated"] != before, "the master renews", 10)


def ended(row: Row, master: Started, seen: Seen, *, calm: bool, shown: bool) -> None:
    """The run ends with its digest; calm: as if its clocks were right."""
    one = finish(Row(""), master, VALUES)
    last, texts = master.events("generation")[-1], [note["text"] for note in master.events("note")]
    notes = [text for text in texts if not text.startswith("settings from the recipe")]
    recoveries = seen.progress().get("recoveries", "")
    if calm:
        assert not recoveries and not last["recovered"] and not notes, (recoveries, last, notes)
    row.lost, row.equal, row.noticed = (
        row.lost + one.lost,
        bool(row.equal) and bool(one.equal),
        row.noticed + shown,
    )
    row.remark = (
        "nothing was counted as lost" if not recoveries else f"recoveries {recoveries}: {WHY}"
    )


for _who, _of, _needs in (
    ("worker", "a worker", ""),
    ("master", "the master", ""),
    ("redis", "the host of Redis", "faketime"),
):
    register(_who, _of, _needs)
