"""Masters that are killed, at six points of a generation, and resumed."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.faults import counted, crashing
from tests.faults.scenario import Arena, Row, Stopwatch, scenario
from tests.integration.processes import (
    CARTPOLE,
    NERVOUS,
    Seen,
    Started,
    clocks_text,
    flags,
    quiet_digest,
    wait_for,
)

#: As everything that could make numbers depend on the cluster, but in an environment that counts
#: its episodes.
COUNTED: dict[str, Any] = {
    **CARTPOLE,
    "env": "counted:Counted-v0",
    "min_steps": 300,
    "step_limit": "adaptive:30,0.5,1.5,120",
    "obs_sample": 1.0,
    "eval_every": 3,
    "eval_episodes": 2,
    "generations": 10,
    "block": 1,
}
#: A dead master's lease is waited for.
CLOCKS = replace(NERVOUS, lease=1.0)
#: Calls at a point until the n-th kill (0, 1 …), so that it falls into another generation each
#: time.
CALLS: dict[str, Callable[[int], int]] = {
    "before publish": lambda n: 2 + 2 * n,
    "after publish": lambda n: 1 + 2 * n,
    "mid-collect": lambda n: 4 + 13 * n,
    "after update": lambda n: 1 + 2 * n,
    "mid-checkpoint write": lambda n: 2 + 2 * n,
    "after rename": lambda n: 1 + 2 * n,
}

_quiet: list[Quiet] = []


@dataclass(frozen=True)
class Quiet:
    """An undisturbed run of COUNTED: the episodes that its worker played, by seed, and the steps
    that counted.
    """

    episodes: Counter[str]
    env_steps: int


class Crashes:
    """A server, a worker that stays, and masters that crash."""

    def __init__(self, arena: Arena, url: str = "") -> None:
        self.arena, self.log = arena, arena.folder / "episodes"
        self.host()
        self.url = url or arena.server()
        self.worker = arena.processes.worker(
            self.url, clocks=CLOCKS, **{counted.VARIABLE: str(self.log)}
        )

    def host(self, name: str = "") -> Path:
        """A folder that might be another host's, with the environment in it."""
        folder = self.arena.folder / name
        folder.mkdir(exist_ok=True)
        shutil.copy(counted.__file__, folder / "counted.py")
        return folder

    def crash(self, run: str, point: str, calls: int) -> None:
        """A new run whose master is killed at a point."""
        words = (*flags(COUNTED), "--run", run, "--json", "--redis-url", self.url)
        assert crashed(self.arena, point, calls, *words).wait() == -signal.SIGKILL

    def resumed(self, run: str, *words: object) -> Started:
        return self.arena.processes.master(
            "--resume", run, "--json", *words, url=self.url, clocks=CLOCKS
        )

    def played(self) -> Counter[str]:
        """The episodes since the last call, by seed."""
        found = counted.episodes(self.log)
        self.log.unlink(missing_ok=True)
        return found

    def quiet(self) -> Quiet:
        """Played once for all scenarios; again where a copy of a slow block was played, which is no
        fault of anybody.
        """
        while not _quiet:
            master, _ = self.arena.started(
                f"quiet-{secrets.token_hex(3)}", self.url, COUNTED, clocks=CLOCKS
            )
            assert master.wait() == 0, master.said()
            last, episodes = master.events("generation")[-1], self.played()
            if not last["duplicate"] + last["late"] + last["reissued"]:
                _quiet.append(Quiet(episodes, last["env_steps"]))
        return _quiet[0]


def crashed(arena: Arena, point: str, calls: int, *words: object) -> Started:
    """An es-master that is going to be killed."""
    program = (sys.executable, crashing.__file__, point, calls)
    return arena.processes.start(*program, *words, ES_QUEUE_CLOCKS=clocks_text(CLOCKS))


def register(point: str) -> None:
    @scenario(
        f"master killed: {point}",
        quick=1,
        full=5,
        slow=point not in ("before publish", "mid-collect"),
    )
    def killed(arena: Arena, count: int) -> Row:
        row, place = Row("", injected=count, equal=True), Crashes(arena)
        quiet, again = place.quiet(), 0
        for number in range(count):
            run = f"crash-{number}"
            place.crash(run, point, CALLS[point](number))
            began = master_generation(arena, place.url, run)
            watch = Stopwatch()
            master = place.resumed(run)
            wait_for(lambda master=master: master.events("generation"), "a generation is closed")  # type: ignore[misc]
            row.seconds.append(watch.seconds())
            finish(row, master)
            again += replayed(place.played(), quiet)
            assert master.events("generation")[-1]["env_steps"] == quiet.env_steps
            assert began - master.events("generation")[0]["generation"] in (0, 1), (
                "at most one generation is closed again"
            )
            row.noticed += taken_over(Seen(arena.client(place.url), run))
        assert again <= 2 * count, (
            f"{again} episodes were played again, but one pair was in flight each time"
        )
        row.remark = (
            f"seconds from the start of --resume to its first generation; {again} episodes "
            "played again"
        )
        return row


for _point in crashing.POINTS:
    register(_point)


def master_generation(arena: Arena, url: str, run: str) -> int:
    """The generation that the dead master has left open."""
    return Seen(arena.client(url), run).generation()


def taken_over(seen: Seen) -> int:
    """How often the run says that it was taken over from a dead master."""
    return recovered(seen, "taken-over")


def recovered(seen: Seen, cause: str) -> int:
    """How often the run says that it recovered from a cause."""
    return int(json.loads(seen.progress().get("recoveries") or "{}").get(cause, [0])[0])


def replayed(played: Counter[str], quiet: Quiet) -> int:
    """Episodes that the undisturbed run did not need."""
    return sum((played - quiet.episodes).values())


def finish(
    row: Row, master: Started, seconds: float = 120.0, values: dict[str, Any] = COUNTED
) -> None:
    """Wait for the end of a run in the environment that counts; fill in slots lost for good and
    whether the digest is right.
    """
    assert master.wait(seconds) == 0, master.said()[-3000:]
    closed = [
        one for one in master.events("generation") if one["generation"] < values["generations"]
    ]
    row.lost += sum(max(0, values["population"] - one["population"]) for one in closed)
    expected = quiet_digest({**values, "env": CARTPOLE["env"]})
    row.equal = bool(row.equal) and master.events("summary")[-1]["digest"] == expected


@scenario("master killed in the middle of a checkpoint, and Redis lost everything", quick=1, full=5)
def torn_and_lost(arena: Arena, count: int) -> Row:
    """The half of a checkpoint is passed over; the one before it is what the run goes on from."""
    row, place = Row("", injected=count, equal=True), Crashes(arena)
    for number in range(count):
        run, written = f"torn-{number}", 3 + 2 * number
        place.crash(run, "mid-checkpoint write", written)
        arena.client(place.url).flushall()
        watch = Stopwatch()
        master = place.resumed(run)
        wait_for(lambda master=master: master.events("generation"), "a generation is closed")  # type: ignore[misc]
        row.seconds.append(watch.seconds())
        first = master.events("generation")[0]["generation"]
        assert first == written - 2, (
            f"checkpoint {written - 1} was torn, so the run goes on from {written - 2}"
        )
        finish(row, master)
        row.noticed += master.events("started")[0]["resumed"].startswith(f"generation {first},")
    return row


@scenario("master killed with a private server and local workers", quick=1, full=5)
def private_killed(arena: Arena, count: int) -> Row:
    """Server and workers end with it; the run resumes from its folder."""
    row = Row("", injected=count, equal=True)
    shutil.copy(counted.__file__, arena.folder / "counted.py")
    for number in range(count):
        run = f"private-{number}"
        doomed = crashed(
            arena,
            "mid-collect",
            30 + 5 * number,
            *flags(COUNTED),
            "--run",
            run,
            "--workers",
            1,
            "--json",
        )
        assert doomed.wait() == -signal.SIGKILL
        wait_for(lambda: not arena.processes.living(), "all its processes are gone", 5.0)
        watch = Stopwatch()
        master = arena.processes.master("--resume", run, "--workers", 1, "--json", clocks=CLOCKS)
        wait_for(lambda master=master: master.events("generation"), "a generation is closed")  # type: ignore[misc]
        row.seconds.append(watch.seconds())
        finish(row, master)
        assert not arena.processes.living(), "they end with the run"
        row.noticed += master.events("started")[0]["resumed"].startswith("generation ")
    return row
