"""``python -m tests.faults.soak [GENERATIONS]``: what a run holds after many tiny generations.

One worker, a cluster of one: Redis's keys and memory, the master's and the worker's memory and
descriptors, and the run's folder, each looked at again and again while the run goes on.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tests.faults import worlds
from tests.faults.scenario import Arena, Row, Stopwatch, arena
from tests.faults.scenarios.environments import held
from tests.integration.processes import CLOCKS, Seen, wait_for

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
#: What is held at one moment; memory in megabytes, files in kilobytes.
Look = dict[str, float]
#: How much each may grow between two looks, and besides per generation. Python seldom collects
#: garbage: a master takes some megabytes more in its first thousand generations (6 were seen), and
#: 0.1 in each thousand after. An entry of the history in Redis takes 1.2 kB. The individuals of 200
#: generations, the most that are kept, take up to 12 kB each.
MOST = {
    "keys": (3, 0.0),
    "redis MB": (1, 1.2 / 1024),
    "master MB": (8, 0.0),
    "worker MB": (4, 0.0),
    "descriptors": (2, 0.0),
    "folder kB": (64, 0.0),
    "metrics kB": (0, 3.0),
    "slots kB": (200 * 12, 0.0),
    "replay kB": (0, 1.0),
}


def look(seen: Seen, pids: tuple[int, int], folder: Path) -> Look:
    found = dict.fromkeys(MOST, 0.0) | {
        "generation": seen.generation(),
        "keys": seen.client.dbsize(),
        "redis MB": seen.client.info("memory")["used_memory"] / 2**20,
        "master MB": held(pids[0]),
        "worker MB": held(pids[1]),
        "descriptors": sum(len([*Path(f"/proc/{pid}/fd").iterdir()]) for pid in pids),
    }
    for path in folder.rglob("*"):
        top = path.relative_to(folder).parts[0].partition(".")[0]
        try:
            size = path.stat().st_size / 1024 if path.is_file() else 0
        except FileNotFoundError:
            continue
        found[f"{top} kB" if f"{top} kB" in MOST else "folder kB"] += size
    time.sleep(0.02)
    return found


def row_of(place: Arena, generations: int) -> Row:
    """The row of the table: ``injected`` are generations, all of them ended and none left anything
    behind. Looks after a tenth and after four fifths: later the run could end, and open more files,
    while it is looked at.
    """
    shutil.copy(worlds.__file__, place.folder / "worlds.py")
    url, values = place.server(), {**TINY, "generations": generations}
    master, seen = place.started("soak", url, values, "--quiet", clocks=CLOCKS)
    pids = master.pid, seen.horse(seen.joined(place.processes.worker(url, clocks=CLOCKS)))
    looks, watch = [], Stopwatch()
    for generation in (generations // 10, generations * 4 // 5):
        wait_for(seen.has_reached(generation), f"generation {generation}", 600)
        found = [look(seen, pids, place.folder / "runs" / "soak") for _ in range(5)]
        # What changes from moment to moment, as open files do.
        looks.append({name: min(one[name] for one in found) for name in found[0]})
    assert master.wait(600) == 0, master.said()[-2000:]
    done = looks[1]["generation"] - looks[0]["generation"]
    grown = {name: looks[1][name] - looks[0][name] for name in MOST}
    trouble = [
        f"{name} grew by {grown[name]:.1f}"
        for name, (most, each) in MOST.items()
        if grown[name] > most + each * done
    ]
    told = ["; ".join(f"{name} {value:.0f}" for name, value in one.items()) for one in looks]
    pace = f"{looks[1]['generation'] / watch.seconds():.0f} generations a second"
    row = Row("", injected=generations, noticed=0 if trouble else generations)
    row.remark = ", ".join([*told, pace, *trouble])
    return row


if __name__ == "__main__":
    with arena() as place:
        print(row_of(place, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000).remark)
