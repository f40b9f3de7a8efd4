"""All rows of the scale table: real runs, what is fitted from them, and the sizes that this machine
cannot drive.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from es_queue.config.run_config import ASYNC, SYNC
from tools.benchmarks.cluster.live import GENERATION_SECONDS, HUMANOID, population_for, real
from tools.benchmarks.cluster.services import Row, Services, fit, rates
from tools.benchmarks.cluster.simulation.discrete_events import Cluster, bound
from tools.benchmarks.cluster.simulation.discrete_events import simulated as played
from tools.benchmarks.cluster.simulation.discrete_events_async import AsyncCluster
from tools.benchmarks.cluster.simulation.durations import CONSTANT, HEAVY, RECORDED, SLOW, Durations
from tools.benchmarks.micro.drain import drain

#: The most that two cores drive while the simulator takes at most a tenth of them.
LARGEST = {RECORDED: 240, SLOW: 540, HEAVY: 480}
SCHEDULES = (SYNC, ASYNC)
SIZES, SIMULATED = (18, 180), (1440, 8192)
CONNECTIONS = 8192
#: Seconds of the network, there and back, in the simulation of larger clusters.
DELAY = 0.0005
HOSTS, FLEET, EPISODES = 30, 1440, 10_000
HUMANOID_SIZE = 166_673
#: Work of each worker in a generation of the rows that ask for much of it.
LONG_SECONDS = 60.0
FITTED = Path(__file__).with_name("services.json")


def shipped() -> Services:
    """The service times that were fitted on the machine of ``docs/scale.md``."""
    return Services(**json.loads(FITTED.read_text()))


def simulated(
    workers: int,
    durations: str = RECORDED,
    *,
    population: int = 0,
    services: Services | None = None,
    seed: int = 0,
    schedule: str = SYNC,
    **more: Any,
) -> dict[str, Any]:
    """One row of the discrete-event simulation. population: 0 for a generation of about ten
    seconds.
    """
    drawn, kind = Durations(durations, seed), AsyncCluster if schedule == ASYNC else Cluster
    row = played(
        workers,
        drawn,
        population or population_for(workers, drawn.mean()),
        services or shipped(),
        kind=kind,
        **more,
    )
    return {
        **row,
        "schedule": schedule,
        "episode_seconds": drawn.mean(),
        "size": more.get("size", 0),
    }


def agreement(row: Row, services: Services) -> dict[str, Any]:
    """A real run beside the simulation of it; difference in points of efficiency."""
    model = simulated(
        row["workers"],
        row["durations"],
        population=row["population"],
        services=services,
        generations=row["generations"] + 2,
        size=row["size"],
        schedule=row["schedule"],
    )
    if "efficiency" not in model:
        return model
    return {
        "workers": row["workers"],
        "durations": row["durations"],
        "schedule": row["schedule"],
        "real": row["efficiency"],
        "simulated": model["efficiency"],
        "points": 100 * (model["efficiency"] - row["efficiency"]),
        "bound": model["bound"],
        "gap_real": median(one["gap"] for one in row["overheads"]),
        "gap_simulated": model["gap"],
        "cpu_real": row["cpu"],
        "cpu_simulated": model["cpu"],
    }


def control(row: Row) -> dict[str, float]:
    """Requests a second that carry no work: looks at the orders, beats, and claims of the idle."""
    found = rates(row)
    idle = max(0.0, found["claim"] + found["claimed"] - 2 * found["answer"])
    return {
        "workers": row["workers"],
        "orders": found["orders"],
        "beats": found["alive"] + found["beat"],
        "idle_claims": idle,
    }


def overhead(row: Row) -> dict[str, Any]:
    """What a generation costs beside its episodes; medians, and the share of a generation of ten
    seconds.
    """
    names = ("last_answer_to_published", "published_to_first_claim", "gap")
    found = {name: median(one[name] for one in row["overheads"]) for name in names}
    return {
        "parameters": row["size"],
        "episodes": row["population"],
        "workers": row["workers"],
        **found,
        "share_of_ten_seconds": found["gap"] / 10,
    }


def traffic(row: Row) -> dict[str, Any]:
    """Redis' memory and what leaves it in a generation, beside hosts times parameters,
    and results.
    """
    generations, seconds, hosts = (
        row["generations"],
        row["seconds"],
        -(-row["workers"] // row["per_host"]),
    )
    results = row["result_bytes"] / generations
    least = 4 * row["size"] * hosts + results
    left = row["redis"]["total_net_output_bytes"] * seconds / generations
    again = max(0.0, row["master"]["collect"]["more"] / generations - results)
    memory = row["redis"]["most_used_memory"] - row["redis"]["least_used_memory"]
    return {
        "workers": row["workers"],
        "schedule": row["schedule"],
        "hosts": hosts,
        "seconds": seconds / generations,
        "parameters_bytes": 4 * row["size"],
        "result_bytes": results,
        "hosts_x_parameters_and_results": least,
        "bytes_left": left,
        "ratio": left / least,
        "read_again": again,
        "ratio_read_once": (left - again) / least,
        "memory": memory,
        "received_by_workers": {
            name: value / (generations + 2) for name, value in row["received"].items()
        },
        "efficiency": row["efficiency"],
    }


def connections(row: Row) -> dict[str, Any]:
    """So many workers complete real generations; the simulator is far from idle then, so the
    efficiency is a lower bound.
    """
    if not row["completed"]:
        return dict(row)
    names = (
        "workers",
        "population",
        "generations",
        "seconds",
        "efficiency",
        "late",
        "played_twice",
        "cpu",
        "redis_peak_rss",
        "timers_late",
    )
    return {
        **{name: row[name] for name in names},
        "clients": row["redis"].get("most_connected_clients"),
        "memory": row["redis"].get("most_used_memory"),
    }


def brief(row: Row) -> dict[str, Any]:
    """A real run without what only the fits need."""
    names = (
        "workers",
        "durations",
        "schedule",
        "population",
        "episode_seconds",
        "size",
        "generations",
        "seconds",
        "efficiency",
        "blocks_per_second",
        "played_twice",
        "late",
        "lag",
        "cpu",
        "timers_late",
        "before_others",
    )
    drawn = Durations(row["durations"])
    return {
        **{name: row[name] for name in names},
        "bound": bound(row["workers"], drawn, row["population"], row["generations"] + 1),
        "control": control(row),
    }


def drains(blocks: int = 20_000) -> list[tuple[float, float]]:
    """(the master's CPU seconds, slots) of an answer of one slot and of one of eight."""
    return [
        (1 / drain(3, blocks // slots, slots)["blocks_per_cpu_second"]["median"], slots)
        for slots in (1, 8)
    ]


def larger(services: Services, sizes: Sequence[int] = SIMULATED) -> list[dict[str, Any]]:
    """What this machine cannot drive: generations of ten seconds; the paper's Humanoid; and
    generations of a minute.
    """
    common: dict[str, Any] = {"services": services, "delay": DELAY}
    found = [
        simulated(
            workers,
            durations,
            schedule=schedule,
            generations=4 if workers < CONNECTIONS else 3,
            **common,
        )
        for workers in sizes
        for durations in (RECORDED, SLOW, HEAVY)
        for schedule in SCHEDULES
        if (workers, durations) != (CONNECTIONS, RECORDED)  # no run may have so many individuals
    ]
    paper = [
        simulated(
            FLEET,
            SLOW,
            schedule=one,
            population=EPISODES,
            size=HUMANOID_SIZE,
            generations=6,
            per_host=FLEET // HOSTS,
            **common,
        )
        for one in SCHEDULES
    ]
    long = [
        simulated(
            workers,
            SLOW,
            population=population_for(workers, Durations(SLOW).mean(), LONG_SECONDS),
            generations=3,
            **common,
        )
        for workers in (*SIZES, FLEET)
    ]
    return [*found, *paper, *long]


def from_rows(rows: Sequence[Row], sizes: Sequence[int] = SIMULATED) -> dict[str, Any]:
    """The whole table from real runs; those that came to no end are told of, and fit nothing."""
    ended = [row for row in rows if not row["completed"]]
    rows = [row for row in rows if row["completed"]]
    humanoid = next(
        row for row in rows if row["size"] == HUMANOID_SIZE and row["durations"] == CONSTANT
    )
    fleets = [row for row in rows if row["size"] == HUMANOID_SIZE and row["durations"] != CONSTANT]
    many = [row for row in rows if row["workers"] == CONNECTIONS]
    measured = [
        row for row in rows if row["size"] != HUMANOID_SIZE and row["workers"] != CONNECTIONS
    ]
    services = fit([*measured, humanoid], drains())
    return {
        "real": [brief(row) for row in [*measured, humanoid, *fleets]],
        "services": asdict(services),
        "agreement": [agreement(row, services) for row in [*measured, humanoid, *fleets]],
        "simulated": larger(services, sizes),
        "overhead": overhead(humanoid),
        "traffic": [traffic(row) for row in fleets],
        "connections": [connections(row) for row in many],
        "not_completed": ended,
    }


def population_of(workers: int, durations: str, quick: bool) -> int:
    """For generations of ten seconds, or of one."""
    return population_for(
        workers, Durations(durations).mean(), 1.0 if quick else GENERATION_SECONDS
    )


def planned(quick: bool) -> list[tuple[str, dict[str, Any]]]:
    """Every real run: a name, and what ``real`` is given."""
    generations = 3 if quick else 5
    found: list[tuple[str, dict[str, Any]]] = []
    for durations in (RECORDED, SLOW, HEAVY):
        for workers in (18, 36) if quick else (*SIZES, LARGEST[durations]):
            for schedule in SCHEDULES:
                given = {
                    "workers": workers,
                    "durations": durations,
                    "schedule": schedule,
                    "population": population_of(workers, durations, quick),
                    "generations": generations,
                }
                found.append((f"{durations}-{schedule}-{workers}", given))
    humanoid = {
        "shape": HUMANOID,
        "population": 1000 if quick else EPISODES,
        "generations": generations,
    }
    found.append(("humanoid", {**humanoid, "workers": 36 if quick else 180, "durations": CONSTANT}))
    if not quick:
        found += [
            (
                f"fleet-{one}",
                {
                    **humanoid,
                    "workers": FLEET,
                    "durations": HEAVY,
                    "schedule": one,
                    "per_host": FLEET // HOSTS,
                    "processes": 2,
                },
            )
            for one in SCHEDULES
        ]
        crowd = {
            "workers": CONNECTIONS,
            "durations": HEAVY,
            "population": population_for(CONNECTIONS, 0.5, 5.0),
            "generations": 3,
            "processes": 2,
            "deadline": 400.0,
        }
        found.append((f"crowd-{SYNC}", crowd))
    return found


def one_row(name: str, quick: bool = False) -> dict[str, Any]:
    """The real run of that name."""
    given = dict(planned(quick))[name]
    return real(
        given["workers"],
        given["durations"],
        **{key: value for key, value in given.items() if key not in ("workers", "durations")},
    )


def all_rows(quick: bool = False) -> dict[str, Any]:
    """Everything, as plain values; ``quick`` takes two minutes and is no figure to quote."""
    return from_rows(
        [one_row(name, quick) for name, _ in planned(quick)], (72,) if quick else SIMULATED
    )
