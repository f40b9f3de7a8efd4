"""Workers that die, whole or in part, or sleep, while they hold a block; and what RQ
keeps of them.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace
from typing import Any

from tests.faults.scenario import RUN, Arena, Row, Stopwatch, scenario
from tests.integration.processes import (
    NERVOUS,
    Seen,
    Started,
    quiet_digest,
    state_of,
    wait_for,
)

#: No block is issued a second time because it takes long: what is issued again was lost.
STEADY = replace(NERVOUS, overdue=60.0)

#: Stopped when all has been done to it: a run of a fixed length might end before.
ENDLESS: dict[str, Any] = {**RUN, "generations": 100_000}


def end(row: Row, master: Started, values: dict[str, Any] = RUN) -> None:
    """Let what befell the open generation be counted, stop the run, and compare its parameters with
    those that the undisturbed run of ``values`` has in that generation. Fills in the slots lost for
    good, too.
    """
    closed = len(master.events("generation"))
    wait_for(
        lambda: len(master.events("generation")) >= closed + 2, "two more generations are closed"
    )
    master.signal(signal.SIGINT)
    assert master.wait() == 130, master.said()[-3000:]
    row.lost = sum(
        max(0, values["population"] - one["population"]) for one in master.events("generation")
    )
    summary = master.events("summary")[-1]
    row.equal = summary["digest"] == quiet_digest(
        {**values, "generations": summary["generation"]}, summary["generation"]
    )


@scenario("worker killed while it holds a block (parent and horse)", quick=2, full=20, slow=False)
def worker_killed(arena: Arena, count: int) -> Row:
    row = Row("", injected=count)
    url = arena.server()
    master, seen = arena.started("killed", url, ENDLESS, clocks=STEADY)
    arena.processes.worker(url, clocks=NERVOUS)
    dice = random.Random(5)
    for _ in range(count):
        row.seconds.append(kill_holding(seen, arena.processes.worker(url, clocks=NERVOUS), dice))
    end(row, master)
    row.noticed = int(master.events("generation")[-1]["recovered"])
    assert left_in_rq(seen) == [], "RQ holds nothing of the run's seats"
    return row


def kill_holding(seen: Seen, victim: Started, dice: random.Random) -> float:
    """Kill a worker in the middle of a block; seconds until nobody holds the block but
    the living.
    """
    seat = seen.joined(victim)
    for _ in range(dice.randrange(3)):
        wait_for(lambda: seen.claims(seat), "it claims")
        wait_for(lambda: not seen.claims(seat), "it answers")
    horse = freeze_owing(seen, seat)
    watch = Stopwatch()
    victim.signal(signal.SIGKILL)
    os.kill(horse, signal.SIGKILL)
    wait_for(lambda: not seen.claims(seat), "its claims are taken from it")
    return watch.seconds()


def freeze_owing(seen: Seen, seat: str) -> int:
    """Stop the seat's process at a moment at which it holds a block of the open generation; its
    pid.
    """
    while True:
        horse = seen.freeze_holding(seat)
        if [one.split()[0] for one in seen.claims(seat)][:1] == [seen.progress()["publication"]]:
            return horse
        os.kill(
            horse, signal.SIGCONT
        )  # the generation has just closed: nobody is owed what it holds


def left_in_rq(seen: Seen) -> list[bytes]:
    """What is left in Redis of the run's seats."""
    entries: list[Any] = [
        entry
        for name in ("rq:wip:default", "rq:failed:default")
        for entry in seen.client.zrange(name, 0, -1)
    ]
    waiting = [
        name
        for key in ("rq:queue:default", "rq:queue:default:intermediate")
        for name in seen.client.lrange(key, 0, -1)
    ]
    mark = f"es-{seen.keys.run}-".encode()
    return [one for one in (*entries, *waiting, *seen.client.keys("rq:*")) if mark in one]


@scenario("RQ worker killed, its horse left behind", quick=2, full=20, slow=False)
def parent_killed(arena: Arena, count: int) -> Row:
    """The orphan gives back what it holds, or answers it first, and ends by itself."""
    row = Row("", injected=count)
    url = arena.server()
    master, seen = arena.started("orphans", url, ENDLESS, clocks=STEADY)
    arena.processes.worker(url, clocks=NERVOUS)
    for _ in range(count):
        victim = arena.processes.worker(url, clocks=NERVOUS)
        seat = seen.joined(victim)
        horse = seen.horse(seat)
        wait_for(lambda seat=seat: seen.claims(seat), "it claims")  # type: ignore[misc]
        watch = Stopwatch()
        victim.signal(signal.SIGKILL)
        wait_for(lambda horse=horse: state_of(horse) in ("", "Z"), "the orphan has ended", 5)  # type: ignore[misc]
        row.seconds.append(watch.seconds())
        assert seen.claims(seat) == []
        row.noticed += "left: its RQ worker is gone" in victim.said()
    end(row, master)
    assert left_in_rq(seen) == []
    return row


@scenario("work horse killed, its RQ worker lives", quick=1, full=10)
def horse_killed(arena: Arena, count: int) -> Row:
    """RQ starts another horse for the next seat."""
    row = Row("", injected=count)
    url = arena.server()
    master, seen = arena.started("horses", url, ENDLESS, clocks=STEADY)
    arena.processes.worker(url, clocks=NERVOUS)
    for _ in range(count):
        victim = arena.processes.worker(url, clocks=NERVOUS)
        seat = seen.joined(victim)
        horse = freeze_owing(seen, seat)
        watch = Stopwatch()
        os.kill(horse, signal.SIGKILL)
        wait_for(
            lambda seat=seat, victim=victim: seen.seat_of(victim) not in ("", seat),
            "its worker has joined anew",
        )  # type: ignore[misc]
        row.seconds.append(watch.seconds())
        victim.signal(signal.SIGTERM)
        assert victim.wait() == 0
    end(row, master)
    row.noticed = sum(
        "its work horse was killed or crashed" in one["text"] for one in master.events("note")
    )
    assert left_in_rq(seen) == []
    return row


@scenario("worker asleep for longer than its beat (SIGSTOP, SIGCONT)", quick=2, full=20, slow=False)
def worker_asleep(arena: Arena, count: int) -> Row:
    """It is thought dead; what it answers when it wakes counts once, or is refused."""
    row = Row("", injected=count)
    url = arena.server()
    master, seen = arena.started("asleep", url, ENDLESS, clocks=STEADY)
    sleeper = arena.processes.worker(url, clocks=NERVOUS)
    seat = seen.joined(sleeper)
    arena.processes.worker(url, clocks=NERVOUS)
    for _ in range(count):
        horse = freeze_owing(seen, seat)
        wait_for(lambda: not seen.claims(seat), "its claims are taken from it")
        watch = Stopwatch()
        os.kill(horse, signal.SIGCONT)
        wait_for(lambda: seen.claims(seat), "it works again")
        row.seconds.append(watch.seconds())
    end(row, master)
    last = master.events("generation")[-1]
    row.noticed = int(last["recovered"])
    row.remark = (
        f"seconds from its waking to its next claim; {last['duplicate']} of its results were "
        f"duplicates, {last['late']} too late"
    )
    return row
