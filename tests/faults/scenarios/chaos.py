"""Chaos: again and again a worker or the master is killed or frozen, or Redis is emptied; what has
ended is started again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults.scenario import RUN, Arena, Row, Stopwatch, scenario
from tests.integration.processes import NERVOUS, Started, marked, quiet_digest, wait_for

WORKERS = 2
#: About a fifth of a second a generation on two quiet cores.
LOAD: dict[str, Any] = {
    **RUN,
    "population": 16,
    "step_limit": "200",
    "min_steps": 2000,
    "eval_every": 10,
}
GENERATIONS_A_SECOND = 4
#: The dead are missed soon, so that what a kill costs is the start of what takes their place.
CLOCKS = replace(NERVOUS, lease=1.0, renew=0.1, beat_ttl=0.5, beat=0.1, reconcile=0.1)
KINDS = ("worker", "freeze", "freeze", "flush", "master")
PAUSE = 2.0
LONGEST = 600.0


class Ring:
    """A server, workers and a master. What has ended before its time is started again, as by a
    supervisor.
    """

    def __init__(self, arena: Arena, values: dict[str, Any]) -> None:
        self.arena, self.url = arena, arena.server()
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.master, self.seen = arena.started("chaos", self.url, values, clocks=CLOCKS)
        wait_for(
            lambda: self.seen.generation() > 0 and len(self.seen.workers()) == WORKERS, "all work"
        )

    def _worker(self) -> Started:
        return self.arena.processes.worker(self.url, clocks=CLOCKS)

    def supervise(self) -> bool:
        """Whether the run goes on, after a look at its processes."""
        self.workers = [
            one if one.process.poll() is None else self._worker() for one in self.workers
        ]
        code = self.master.process.poll()
        if code == -signal.SIGKILL:
            self.master = self.arena.processes.master(
                "--resume", "chaos", "--json", url=self.url, clocks=CLOCKS
            )
        else:
            assert code in (None, 0), self.master.said()[-3000:]
        return code != 0

    def befall(self, what: str, dice: random.Random) -> None:
        """SIGKILL to a worker and its horse, or to the master; "freeze": a worker
        stops for longer than its beat lasts; "flush": Redis loses everything.
        """
        if what == "flush":
            self.seen.client.flushall()
            return
        doomed = [self.master.pid]
        if what != "master":
            leader = str(dice.choice(self.workers).pid)
            doomed = [pid for pid in marked(self.arena.processes.mark) if session_of(pid) == leader]
        freezes = what == "freeze"
        self._signal(doomed, signal.SIGSTOP if freezes else signal.SIGKILL)
        if freezes:
            time.sleep(2 * CLOCKS.beat_ttl)
            self._signal(doomed, signal.SIGCONT)

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def session_of(pid: int) -> str:
    """The pid of the process that leads the session of ``pid``."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3]
    return ""


@scenario(
    "chaos: workers killed or frozen, master killed, Redis emptied, every 2 s", quick=20, full=60
)
def anything(arena: Arena, seconds: int) -> Row:
    row, dice = Row("", injected=1), random.Random(7)
    values = {**LOAD, "generations": GENERATIONS_A_SECOND * seconds}
    ring, kills, due, watch = Ring(arena, values), dict[str, int](), PAUSE, Stopwatch()
    while ring.supervise():
        time.sleep(0.05)
        assert watch.seconds() < LONGEST, ring.master.said()[-3000:]
        if due <= watch.seconds() < seconds:
            due += PAUSE
            what = dice.choice(KINDS)
            kills[what] = kills.get(what, 0) + 1
            ring.befall(what, dice)
    told = json.loads(ring.seen.progress().get("recoveries") or "{}")
    row.equal = ring.master.events("summary")[-1]["digest"] == quiet_digest(values)
    row.lost = sum(
        max(0, values["population"] - one["population"])
        for one in ring.master.events("generation")
        if one["generation"] < values["generations"]
    )
    row.noticed = int(bool(told))
    row.remark = f"{', '.join(f'{what} {count}' for what, count in sorted(kills.items()))}; " + (
        f"reported: {', '.join(f'{cause} {count:.0f}' for cause, (count, *_) in told.items())}"
    )
    return row
