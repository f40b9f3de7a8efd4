"""Disks that are full, checkpoints that are torn, and what a run holds after many generations."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from master.loop import checkpoint
from tests.faults import counted, soak
from tests.faults.scenario import Arena, Row, Stopwatch, finish, scenario
from tests.integration.processes import (
    BIN,
    CARTPOLE,
    NERVOUS,
    Seen,
    Started,
    flags,
    quiet_digest,
    wait_for,
)

COUNTED: dict[str, Any] = {**CARTPOLE, "env": "counted:Counted-v0", "block": 1}
FULL = "No space left on device"


# --- a full disk


class SmallDisk:
    """A run whose folder is a disk of 2 MB, which only its master sees; the injector reaches it
    through /proc.
    """

    def __init__(self, arena: Arena, run: str, url: str, **values: Any) -> None:
        shutil.copy(counted.__file__, arena.folder / "counted.py")
        self.arena, self.run, self.values = arena, run, {**COUNTED, **values}
        self.url = url
        self.folder = arena.folder / "runs" / run
        self.folder.mkdir(parents=True)
        words = " ".join(flags(self.values))
        words = f"{BIN}/es-master {words} --run {run} --json --redis-url {url}"
        script = f"mount -t tmpfs -o size=2m tmpfs {self.folder} && exec {words}"
        self.master: Started = arena.processes.start(
            "unshare", "-m", "sh", "-c", script, **{counted.VARIABLE: str(arena.folder / "played")}
        )
        wait_for(lambda: self.master.events("started"), "the run starts")
        self.seen = Seen(arena.client(self.url), run)
        self.inside = Path(f"/proc/{self.master.pid}/root{self.folder}")

    def fill(self) -> None:
        with suppress(OSError), (self.inside / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(256))

    def free(self) -> None:
        (self.inside / "filler").unlink()

    def notes(self, *words: str) -> list[str]:
        return [
            one["text"]
            for one in self.master.events("note")
            if all(word in one["text"] for word in words)
        ]

    def checkpoints(self) -> list[Path]:
        return sorted((self.inside / "checkpoints").glob("generation-*.npz"))


@scenario(
    "disk full for a while (checkpoints, metrics, replay log)",
    quick=5,
    full=5,
    needs="unshare",
)
def disk_full(arena: Arena, count: int) -> Row:
    """One full disk, five files that cannot be written: each is said, the old checkpoint stays
    whole, training continues.
    """
    url = arena.server()
    place = SmallDisk(arena, "cramped", url, generations=110)
    arena.processes.worker(url, clocks=NERVOUS, **{counted.VARIABLE: str(arena.folder / "played")})
    row = Row("", injected=count)
    wait_for(place.seen.has_reached(5), "generation 5")
    place.fill()
    watch = Stopwatch()
    wait_for(
        lambda: place.notes(
            "checkpoints cannot be written", FULL, "training continues and tries again"
        ),
        "the full disk is said",
    )
    for name in ("metrics.jsonl", "metrics.csv", "replay log", "slots"):
        wait_for(lambda name=name: place.notes(name, "cannot be written"), f"and for {name}")  # type: ignore[misc]
    row.noticed = len(place.notes("cannot be written"))
    old = place.checkpoints()
    assert old and not list((place.inside / "checkpoints").glob(".*")), (
        "nothing of the failed one is left"
    )
    for path in old:
        checkpoint.decode(path.read_bytes())
    place.free()
    wait_for(lambda: place.checkpoints()[-1] > old[-1], "a checkpoint is written again")
    row.seconds.append(watch.seconds())
    finish(row, place.master, {**CARTPOLE, "generations": 110})
    row.remark = (
        f"{row.noticed} warnings, once each; seconds from freed space to the first checkpoint"
    )
    return row


@scenario(
    "disk full to the end (exit code 6; the run resumes from Redis)",
    quick=1,
    full=3,
    needs="unshare",
)
def disk_full_to_the_end(arena: Arena, count: int) -> Row:
    row, url = Row("", injected=count, equal=True), arena.server()
    values = {**CARTPOLE, "generations": 20}
    arena.processes.worker(url, clocks=NERVOUS, **{counted.VARIABLE: str(arena.folder / "played")})
    for number in range(count):
        place = SmallDisk(arena, f"stuffed-{number}", url, generations=20)
        wait_for(place.seen.has_reached(3), "generation 3")
        place.fill()
        watch = Stopwatch()
        assert place.master.wait(60) == 6, place.master.said()
        row.noticed += FULL in place.master.said().rpartition("es-master:")[2]
        master = arena.processes.master(
            "--resume", place.run, "--json", url=place.url, clocks=NERVOUS
        )
        assert master.wait(60) == 0, master.said()
        row.seconds.append(watch.seconds())
        row.equal = bool(row.equal) and master.events("summary")[-1]["digest"] == quiet_digest(
            values
        )
    row.remark = "one error message; --resume plays the rest once there is space"
    return row


# --- checkpoints


@scenario("damaged replay log and metrics.jsonl of a run that is resumed", quick=2, full=20)
def damaged_logs(arena: Arena, count: int) -> Row:
    """They end no run: a torn log begins a new file, a torn line is closed first."""
    row, url = Row("", injected=count, equal=True), arena.server()
    arena.processes.worker(url, clocks=NERVOUS)
    dice = random.Random(3)
    for number in range(count):
        run = f"logs-{number}"
        master, _ = arena.started(run, url, {**CARTPOLE, "generations": 4})
        assert master.wait(60) == 0, master.said()
        folder = arena.folder / "runs" / run
        log = next((folder / "replay").glob("*.log"))
        before = lines((folder / "metrics.jsonl").read_text())
        spoil(log, dice, cut=number % 2 == 0)
        spoil(folder / "metrics.jsonl", dice, cut=True)
        watch = Stopwatch()
        again = arena.processes.master(
            "--resume", run, "--generations", 8, "--json", url=url, clocks=NERVOUS
        )
        one = finish(Row(""), again, {**CARTPOLE, "generations": 8})
        row.seconds.append(watch.seconds())
        row.lost, row.equal = (
            row.lost + one.lost,
            bool(row.equal) and bool(one.equal),
        )
        whole = lines((folder / "metrics.jsonl").read_text())
        row.noticed += len(
            list((folder / "replay").glob("*.log"))
        ) == 2 and whole == before - 1 + len(again.events("generation"))
    return row


def spoil(path: Path, dice: random.Random, *, cut: bool) -> None:
    """Cut off a part of the tail, or flip a bit."""
    data = bytearray(path.read_bytes())
    if cut:
        data = data[: -dice.randrange(1, 40)]
    else:
        data[dice.randrange(len(data) - 200, len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def lines(text: str) -> int:
    """How many lines are whole objects."""
    found = 0
    for line in text.splitlines():
        with suppress(ValueError):
            found += isinstance(json.loads(line), dict)
    return found


# --- many generations


@scenario("many tiny generations (nothing grows)", quick=400, full=10_000)
def many(arena: Arena, count: int) -> Row:
    return soak.row_of(arena, count)
