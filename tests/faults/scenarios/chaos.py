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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from master.services.private_server import PrivateServer
from tests.faults.scenario import RUN, Arena, Row, Stopwatch, scenario
from tests.integration.processes import NERVOUS, Started, marked, wait_for

WORKERS = 2
#: About a third of a second a generation on two quiet cores.
LOAD: dict[str, Any] = {
    **RUN,
    "population": 16,
    "step_limit": "400",
    "min_steps": 4000,
    "eval_every": 10,
}
GENERATIONS_A_SECOND = 3
#: The dead are missed soon, so that what a kill costs is the start of what takes their place.
CLOCKS = replace(NERVOUS, lease=1.0, renew=0.1, beat_ttl=0.5, beat=0.1, reconcile=0.1)
KINDS = ("worker", "freeze", "freeze", "flush", "master")
PAUSE = 2.0
LOOK_SECONDS = 0.3
LONGEST = 600.0


class Ring:
    """A server, workers and a master. What has ended before its time is started again, as by a
    supervisor.
    """

    def __init__(self, arena: Arena, run: str, values: dict[str, Any]) -> None:
        self.arena, self.run = arena, run
        self.server = PrivateServer(arena.folder / run)
        self.server.start()
        arena.stack.callback(self.server.stop)
        self.url = self.server.url
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.master, self.seen = arena.started(run, self.url, values, clocks=CLOCKS)
        wait_for(
            lambda: self.seen.generation() > 0 and len(self.seen.workers()) == WORKERS, "all work"
        )
        self.watch, self.cpu = Stopwatch(), Cpu(arena.processes.mark)
        self.cpu_before = self.cpu.seconds()

    def _worker(self) -> Started:
        return self.arena.processes.worker(self.url, clocks=CLOCKS)

    def supervise(self) -> None:
        self.cpu.update()
        self.workers = [
            one if one.process.poll() is None else self._worker() for one in self.workers
        ]
        code = self.master.process.poll()
        if code == -signal.SIGKILL:
            self.master = self.arena.processes.master(
                "--resume", self.run, "--json", url=self.url, clocks=CLOCKS
            )
        else:
            assert code in (None, 0), self.master.said()[-3000:]

    def over(self) -> bool:
        return self.master.process.poll() == 0

    def live(self) -> Measured:
        """Until the run is complete."""
        while not self.over() and self.watch.seconds() < LONGEST:
            self.supervise()
            time.sleep(0.05)
        assert self.over(), self.master.said()[-3000:]
        summary = self.master.events("summary")[-1]
        return Measured(
            self.watch.seconds(),
            self.cpu.seconds() - self.cpu_before,
            summary["env_steps"],
            summary["digest"],
        )

    def befall(self, what: str, dice: random.Random) -> None:
        """SIGKILL to a worker and its horse, or to the master; "freeze": a worker
        stops for longer than its beat lasts; "flush": Redis loses everything.
        """
        if what == "flush":
            self.seen.client.flushall()
            return
        if what in ("worker", "freeze"):
            one = dice.choice(self.workers)
            doomed = [
                pid
                for pid in marked(self.arena.processes.mark)
                if stat_of(pid)[3:4] == [str(one.pid)]
            ]
        else:
            doomed = [self.master.pid]
        freezes = what == "freeze"
        self._signal(doomed, signal.SIGSTOP if freezes else signal.SIGKILL)
        if freezes:
            time.sleep(2 * CLOCKS.beat_ttl)
            self._signal(doomed, signal.SIGCONT)

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in filter(None, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """Nothing of it takes CPU any more."""
        for pid in marked(self.arena.processes.mark):
            os.kill(pid, signal.SIGKILL)
        self.server.stop()

    def recoveries(self) -> str:
        """What the run says of them."""
        told = json.loads(self.seen.progress().get("recoveries") or "{}")
        return ", ".join(f"{cause} {count:.0f}" for cause, (count, *_) in told.items())


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


class Cpu:
    """CPU seconds of all processes with a mark; the dead count as they were at the last look."""

    def __init__(self, mark: str) -> None:
        self._mark, self._used, self._last_check = mark, dict[int, float](), 0.0

    def update(self) -> None:
        if time.monotonic() - self._last_check >= LOOK_SECONDS:
            self._last_check = time.monotonic()
            for pid in marked(self._mark):
                if fields := stat_of(pid):
                    self._used[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def seconds(self) -> float:
        self.update()
        return sum(self._used.values())


@dataclass(frozen=True)
class Measured:
    """What a run took from the moment at which all worked. cpu: seconds of all its processes but
    the server.
    """

    seconds: float
    cpu: float
    env_steps: int
    digest: str


@scenario(
    "chaos: workers killed or frozen, master killed, Redis emptied, every 2 s", quick=20, full=60
)
def anything(arena: Arena, seconds: int) -> Row:
    """The same run quietly and with faults."""
    row, dice, values = (
        Row("", injected=1),
        random.Random(7),
        {**LOAD, "generations": GENERATIONS_A_SECOND * seconds},
    )
    calm = Ring(arena, "calm", values)
    quiet = calm.live()
    calm.end()
    ring, kills, due = Ring(arena, "chaos", values), dict[str, int](), PAUSE
    while not ring.over() and ring.watch.seconds() < seconds:
        ring.supervise()
        if ring.watch.seconds() >= due:
            due += PAUSE
            what = dice.choice(KINDS)
            kills[what] = kills.get(what, 0) + 1
            ring.befall(what, dice)
        time.sleep(0.05)
    chaos = ring.live()
    row.equal, told = chaos.digest == quiet.digest, ring.recoveries()
    row.lost = sum(
        max(0, values["population"] - one["population"])
        for one in ring.master.events("generation")
        if one["generation"] < values["generations"]
    )
    row.noticed = int(bool(told) and chaos.env_steps == quiet.env_steps)
    goodput, recovery = quiet.seconds / chaos.seconds, max(0.0, chaos.cpu - quiet.cpu)
    bound = 0.9 * (1 - recovery / (quiet.cpu / quiet.seconds * chaos.seconds))
    row.remark = (
        f"a kill every {PAUSE:.1f} s: "
        f"{', '.join(f'{what} {count}' for what, count in sorted(kills.items()))}; reported: "
        f"{told}; "
        f"{quiet.seconds:.0f} s became {chaos.seconds:.0f} s, goodput {goodput:.0%}, recovery "
        f"{recovery:.0f} of {chaos.cpu:.0f} CPU s, "
        f"0.9 × (1 − recovery ÷ quiet CPU) = {bound:.0%}"
    )
    return row
