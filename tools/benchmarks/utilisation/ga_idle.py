"""How long workers of the genetic algorithm have nothing to play where episodes last a heavy-tailed
time.

With generations and without, in whole runs of real processes. A worker is busy from the claim of a
block to the answer that counts; all other time of the run is idle: waiting, asking, and playing
what another had answered already.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tools.benchmarks.figures import Row, number
from tools.benchmarks.recording import WATCHED, Event, events_in
from tools.benchmarks.runs import Bench, Whole, processes_of
from tools.benchmarks.utilisation.heavy_tailed_env import TAILED

#: They sleep, so that more of them than processors are no less idle for it.
WORKERS, POPULATION = 8, 64
EPISODES, QUICK_EPISODES = 1000, 100
WORDS = (
    "--env",
    TAILED,
    "--strategy",
    "ga",
    "--env-seeds",
    "slot",
    "--population",
    POPULATION,
    "--truncation",
    10,
    "--candidates",
    4,
    "--elite-episodes",
    4,
    "--eval-every",
    0,
    "--final-episodes",
    0,
    "--target-reward",
    "none",
    "--no-obs-norm",
    "--seed",
    1,
    "--workers",
    WORKERS,
)
TEXT = "wall time that 8 workers of the genetic algorithm idle, heavy-tailed episodes, {}"
KINDS = {"sync": "with generations", "async": "without"}


def measured(bench: Bench) -> list[Row]:
    found: dict[str, list[tuple[float, float]]] = {schedule: [] for schedule in KINDS}
    for _ in range(bench.repeats):
        for schedule in KINDS:
            found[schedule].append(idle_and_rate(played(bench, schedule)))
    return [
        Row(
            f"ga-idle-{schedule}",
            TEXT.format(KINDS[schedule]),
            tuple(100 * idle for idle, _ in values),
            " %",
            None if schedule == "sync" else 5.0,
            "<",
            {"individuals per second": ", ".join(number(rate) for _, rate in values)},
        )
        for schedule, values in found.items()
    ]


def played(bench: Bench, schedule: str) -> list[Event]:
    """What the workers of a run did until so many individuals were answered."""
    most = QUICK_EPISODES if bench.quick else EPISODES
    lag = ("--max-lag", 100) if schedule == "async" else ()
    with processes_of(bench) as processes:
        whole = Whole(
            processes,
            bench.fresh(f"ga-{schedule}") / "run",
            *WORDS,
            "--schedule",
            schedule,
            *lag,
            "--noise-dir",
            bench.noise,
            **WATCHED,
        )
        generation = 0
        while int(whole.record(generation)["episodes"]) < most:
            generation += 1
        events = events_in(whole.events)
        whole.stop()
        return events


def idle_and_rate(events: Sequence[Event]) -> tuple[float, float]:
    """(share of the time of all workers that is idle, training slots answered a second), from when
    all have begun to the last answer that counts.
    """
    workers = {
        pid: list(own)
        for pid, own in groupby(
            sorted(events, key=lambda one: (one.pid, one.time)), key=lambda one: one.pid
        )
    }
    began, ended = (
        max(own[0].time for own in workers.values()),
        max(one.time for one in events if one.event == "answer" and one.fresh),
    )
    busy, slots, seen = 0.0, 0, set[tuple[str, str, int]]()
    counted = {id(one) for one in sorted(events, key=lambda one: one.time) if fresh(one, seen)}
    for own in workers.values():
        claimed = began
        for one in own:
            if one.event == "claim":
                claimed = one.time
            elif id(one) in counted and one.time > began:
                busy += one.time - max(began, claimed)
                slots += (one.block.stop - one.block.start) * (one.block.kind == "train")
    wall = ended - began
    return 1 - busy / (len(workers) * wall), slots / wall


def fresh(one: Event, seen: set[tuple[str, str, int]]) -> bool:
    """Whether an event is the first answer to a slot of its block."""
    slots = {
        (one.block.publication, one.block.kind, slot)
        for slot in range(one.block.start, one.block.stop)
    }
    if one.event != "answer" or not one.fresh or slots <= seen:
        return False
    seen |= slots
    return True
