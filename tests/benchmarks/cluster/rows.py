"""All rows of the scale table: real runs, what is fitted from them, and the sizes that this machine cannot drive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.cluster.durations import CONSTANT, HEAVY, RECORDED, Durations
from tests.benchmarks.cluster.events import bound
from tests.benchmarks.cluster.events import simulated as played
from tests.benchmarks.cluster.live import GENERATION_SECONDS, HUMANOID, population_for, real
from tests.benchmarks.cluster.services import Row, Services, fit, rates
from tests.benchmarks.drain import drain

#: The most that two cores drive while the simulator takes at most a tenth of them.
LARGEST = {RECORDED: 240, HEAVY: 600}
SIZES, SIMULATED = (18, 180), (1440, 8192)
CONNECTIONS = 8192
DELAYS = (0.0, 0.0005)
HOSTS, FLEET, EPISODES = 30, 1440, 10_000
FITTED = Path(__file__).with_name("services.json")


def shipped() -> Services:
    """The service times that were fitted on the machine of ``docs/scale.md``."""
    return Services(**json.loads(FITTED.read_text()))


def simulated(workers: int, durations: str = RECORDED, *, population: int = 0, services: Services | None = None, seed: int = 0, **more: Any) -> dict[str, Any]:
    """One row of the discrete-event simulation. population: 0 for a generation of about ten seconds."""
    drawn = Durations(durations, seed)
    return played(workers, drawn, population or population_for(workers, drawn.mean()), services or shipped(), **more)


def agreement(row: Row, services: Services) -> dict[str, Any]:
    """A real run beside the simulation of it; difference in points of efficiency."""
    model = simulated(row["workers"], row["durations"], population=row["population"], services=services, generations=row["generations"] + 1, size=row["size"])
    if "efficiency" not in model:
        return model
    return {
        "workers": row["workers"], "durations": row["durations"], "real": row["efficiency"], "simulated": model["efficiency"],
        "points": 100 * (model["efficiency"] - row["efficiency"]), "bound": model["bound"],
        "gap_real": median(one["gap"] for one in row["overheads"]), "gap_simulated": model["gap"],
        "cpu_real": row["cpu"], "cpu_simulated": model["cpu"],
    }  # fmt: skip


def control(row: Row) -> dict[str, float]:
    """Requests a second that carry no work: looks at the orders, beats, and claims of the idle."""
    found = rates(row)
    idle = max(0.0, found["claim"] + found["claimed"] - 2 * found["answer"])
    return {"workers": row["workers"], "orders": found["orders"], "beats": found["alive"] + found["beat"], "idle_claims": idle}


def overhead(row: Row) -> dict[str, Any]:
    """What a generation costs beside its episodes; medians, and the share of a generation of ten seconds."""
    names = ("last_answer_to_published", "published_to_first_claim", "gap")
    found = {name: median(one[name] for one in row["overheads"]) for name in names}
    return {"parameters": row["size"], "episodes": row["population"], "workers": row["workers"], **found, "share_of_ten_seconds": found["gap"] / 10}


def traffic(row: Row) -> dict[str, Any]:
    """Redis' memory and what leaves it in a generation, beside hosts times parameters, and results."""
    generations, seconds, hosts = row["generations"], row["seconds"], -(-row["workers"] // row["per_host"])
    results = row["result_bytes"] / generations
    least = 4 * row["size"] * hosts + results
    left = row["redis"]["total_net_output_bytes"] * seconds / generations
    memory = row["redis"]["most_used_memory"] - row["redis"]["least_used_memory"]
    return {
        "workers": row["workers"], "hosts": hosts, "seconds": seconds / generations, "parameters_bytes": 4 * row["size"], "result_bytes": results,
        "hosts_x_parameters_and_results": least, "bytes_left": left, "ratio": left / least, "memory": memory, "memory_of_clients": memory - row["redis"]["most_used_memory_dataset"],
        "received_by_workers": {name: value / (generations + 1) for name, value in row["received"].items()},
    }  # fmt: skip


def connections(workers: int = CONNECTIONS) -> dict[str, Any]:
    """So many workers complete real generations; the simulator is far from idle then, so the efficiency is a lower bound."""
    row = real(workers, HEAVY, population=population_for(workers, 0.5, 5.0), generations=2, processes=2, deadline=400)
    if not row["completed"]:
        return row
    names = ("workers", "population", "generations", "seconds", "efficiency", "late", "played_twice", "cpu", "redis_peak_rss", "timers_late")
    return {**{name: row[name] for name in names}, "clients": row["redis"].get("most_connected_clients"), "memory": row["redis"].get("most_used_memory")}


def brief(row: Row) -> dict[str, Any]:
    """A real run without what only the fits need."""
    names = ("workers", "durations", "population", "generations", "seconds", "efficiency", "blocks_per_second", "played_twice", "late", "cpu", "timers_late", "before_others")
    drawn = Durations(row["durations"])
    return {**{name: row[name] for name in names}, "bound": bound(row["workers"], drawn, row["population"], row["generations"] + 1), "control": control(row)}


def drains(blocks: int = 20_000) -> list[tuple[float, float]]:
    """(the master's CPU seconds, slots) of an answer of one slot and of one of eight."""
    return [(1 / drain(3, blocks // slots, slots)["blocks_per_cpu_second"]["median"], slots) for slots in (1, 8)]


def from_rows(rows: Sequence[Row], humanoid: Row, sizes: Sequence[int] = SIMULATED) -> dict[str, Any]:
    """The part of the table that follows from real runs; those that came to no end are told of, and fit nothing."""
    ended, rows = [row for row in rows if not row["completed"]], [row for row in rows if row["completed"]]
    services = fit([*rows, humanoid], drains())
    larger = [
        {**simulated(workers, durations, services=services, delay=delay, generations=3), "delay": delay}
        for workers in sizes for durations in (RECORDED, HEAVY) for delay in DELAYS
    ]  # fmt: skip
    return {
        "real": [brief(row) for row in rows], "services": asdict(services), "agreement": [agreement(row, services) for row in rows],
        "simulated": larger, "overhead": overhead(humanoid), "not_completed": ended,
    }  # fmt: skip


def measured(quick: bool) -> list[tuple[int, str]]:
    """(workers, durations) of the real runs."""
    return [(workers, durations) for durations in (RECORDED, HEAVY) for workers in ((18, 36) if quick else (*SIZES, LARGEST[durations]))]


def population_of(workers: int, durations: str, quick: bool) -> int:
    """For generations of ten seconds, or of one."""
    return population_for(workers, Durations(durations).mean(), 1.0 if quick else GENERATION_SECONDS)


def all_rows(quick: bool = False) -> dict[str, Any]:
    """Everything, as plain values; ``quick`` takes a minute and is no figure to quote."""
    generations = 2 if quick else 5
    rows = [real(workers, durations, population=population_of(workers, durations, quick), generations=generations) for workers, durations in measured(quick)]
    humanoid = real(36 if quick else 180, CONSTANT, population=1000 if quick else EPISODES, generations=generations, shape=HUMANOID)
    found: Mapping[str, Any] = from_rows(rows, humanoid, (72,) if quick else SIMULATED)
    if quick:
        return dict(found)
    fleet = real(FLEET, HEAVY, population=EPISODES, generations=4, shape=HUMANOID, per_host=FLEET // HOSTS, processes=2)
    return {**found, "traffic": traffic(fleet), "connections": connections()}
