"""``python -m tests.faults.soak [GENERATIONS]``: what a run holds after many tiny generations.

One worker, a cluster of one: Redis's keys and memory, the master's and the worker's memory and
descriptors, and the run's folder, each looked at again and again while the run goes on.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.faults.scenario import Arena, Row, Stopwatch, arena
from tests.faults.scenarios.environments import held
from tests.integration.processes import CLOCKS, Seen, Started, wait_for

#: Generations that last milliseconds: the run's own machinery is nearly all there is.
TINY: dict[str, Any] = {
    "env": "worlds:Blink-v0",
    "seed": 5,
    "population": 4,
    "strategy": "ars",
    "eval_every": 0,
    "final_episodes": 1,
    "target_reward": "none",
    "noise_size": 2**14,
}


@dataclass(frozen=True)
class Look:
    """What is held at one moment; memory in megabytes, the folder without what is counted apart in
    kilobytes.
    """

    generation: int
    keys: int
    redis: float
    master: float
    worker: float
    descriptors: int
    folder: float
    metrics: float
    replay: float
    slots: float

    def __str__(self) -> str:
        return (
            f"at {self.generation:,}: {self.keys} keys, Redis {self.redis:.1f} MB, master "
            f"{self.master:.0f} MB, worker {self.worker:.0f} MB, "
            f"{self.descriptors} descriptors, folder {self.folder:.0f} kB + metrics "
            f"{self.metrics:.0f} kB + replay {self.replay:.0f} kB + slots {self.slots:.0f} kB"
        )


class Soak:
    """A run that is looked at."""

    def __init__(self, place: Arena, generations: int) -> None:
        import shutil

        from tests.faults import worlds

        shutil.copy(worlds.__file__, place.folder / "worlds.py")
        self.url, self.generations = place.server(), generations
        self.master, self.seen = place.started(
            "soak", self.url, {**TINY, "generations": generations}, "--quiet", clocks=CLOCKS
        )
        self.parent = place.processes.worker(self.url, clocks=CLOCKS)
        self.folder = place.folder / "runs" / "soak"
        self.horse = self.seen.horse(self.seen.joined(self.parent))

    def at(self, generation: int) -> Look:
        """Wait for a generation and look; what changes from moment to moment, as open files do, is
        looked at a few times.
        """
        wait_for(self.seen.has_reached(generation), f"generation {generation}", 600)
        looks = [look(self.seen, self.master, self.horse, self.folder) for _ in range(5)]
        least = min(looks, key=lambda one: (one.keys, one.redis))
        return replace(least, descriptors=min(one.descriptors for one in looks))

    def end(self) -> None:
        assert self.master.wait(600) == 0, self.master.said()[-2000:]


def look(seen: Seen, master: Started, horse: int, folder: Path) -> Look:
    own, metrics, replay, slots = sizes(folder)
    found = Look(
        seen.generation(),
        seen.client.dbsize(),
        seen.client.info("memory")["used_memory"] / 2**20,
        held(master.pid),
        held(horse),
        descriptors(master.pid) + descriptors(horse),
        own,
        metrics,
        replay,
        slots,
    )
    time.sleep(0.02)
    return found


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def sizes(folder: Path) -> tuple[float, float, float, float]:
    """Kilobytes of everything else, of metrics.jsonl and metrics.csv, of the replay log, and of who
    lived.
    """
    found = {"own": 0.0, "metrics": 0.0, "replay": 0.0, "slots": 0.0}
    for path in folder.rglob("*"):
        top = path.relative_to(folder).parts[0].removesuffix(".jsonl").removesuffix(".csv")
        try:
            found[top if top in found else "own"] += (
                path.stat().st_size / 1024 if path.is_file() else 0
            )
        except FileNotFoundError:
            continue
    return found["own"], found["metrics"], found["replay"], found["slots"]


def soak(place: Arena, generations: int) -> tuple[list[Look], float]:
    """Looks after a tenth and after four fifths, and generations a second between. Later the run
    could end, and open more files, while it is looked at.
    """
    run = Soak(place, generations)
    first = run.at(generations // 10)
    watch = Stopwatch()
    last = run.at(generations * 4 // 5)
    pace = (last.generation - first.generation) / watch.seconds()
    run.end()
    return [first, last], pace


#: Garbage is collected seldom: a master takes some megabytes more in its first thousand generations
#: (6 were seen), and 0.1 in each thousand after.
MASTER_MB = 8


#: The individuals of 200 generations, the most that are kept; a record of so small a population
#: takes eleven kilobytes, eight of them for the settings.
SLOTS_KB = 200 * 12


def grown(first: Look, last: Look) -> list[str]:
    """What is not flat between two looks: each with its figures. The history in Redis is full at
    10,000 generations.
    """
    done = last.generation - first.generation
    history = min(done, 10_000) * 1.2 / 1024  # megabytes: about 1.2 kB an entry
    limits = {
        "keys": (last.keys - first.keys, 3),
        "redis": (last.redis - first.redis, 1 + history),
        "master": (last.master - first.master, MASTER_MB),
        "worker": (last.worker - first.worker, 4),
        "descriptors": (last.descriptors - first.descriptors, 2),
        "folder": (last.folder - first.folder, 64),
        "metrics": (last.metrics - first.metrics, 3.0 * done),
        "slots": (last.slots, SLOTS_KB),
        "replay": (last.replay - first.replay, 1.0 * done),
    }
    return [
        f"{name} grew by {by:.1f}, more than {most:.1f}"
        for name, (by, most) in limits.items()
        if by > most
    ]


def row_of(place: Arena, generations: int) -> Row:
    """The row of the table: ``injected`` are generations, all of them ended and none left anything
    behind.
    """
    (first, last), pace = soak(place, generations)
    trouble = grown(first, last)
    row = Row("", injected=generations, noticed=0 if trouble else generations)
    row.remark = "; ".join([str(first), str(last), f"{pace:.0f} generations a second", *trouble])
    return row


if __name__ == "__main__":
    with arena() as place:
        print(row_of(place, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000).remark)
