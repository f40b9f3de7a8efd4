"""Workers that die, whole or in part, while they hold a block."""

from __future__ import annotations

import os
import random
import signal

from tests.faults.scenario import RUN, Arena, Row, Stopwatch, finish, scenario
from tests.integration.processes import NERVOUS, Seen, Started, wait_for


@scenario("worker killed while it holds a block (parent and horse)", quick=2, full=20)
def worker_killed(arena: Arena, count: int) -> Row:
    row, values = Row("", injected=count), {**RUN, "generations": 8 + 3 * count}
    url = arena.server()
    master, seen = arena.started("killed", url, values)
    arena.processes.worker(url, clocks=NERVOUS)
    dice = random.Random(5)
    for _ in range(count):
        victim = arena.processes.worker(url, clocks=NERVOUS)
        row.seconds.append(kill_holding(seen, victim, dice))
    finish(row, master, values)
    row.noticed = int(master.events("generation")[-1]["recovered"])
    return row


def kill_holding(seen: Seen, victim: Started, dice: random.Random) -> float:
    """Kill a worker in the middle of a block; seconds until nobody holds the block but the living."""
    seat = seen.joined(victim)
    for _ in range(dice.randrange(3)):
        wait_for(lambda: seen.claims(seat), "it claims")
        wait_for(lambda: not seen.claims(seat), "it answers")
    horse = seen.freeze_holding(seat)
    watch = Stopwatch()
    victim.signal(signal.SIGKILL)
    os.kill(horse, signal.SIGKILL)
    wait_for(lambda: not seen.claims(seat), "its claims are taken from it")
    return watch.seconds()
