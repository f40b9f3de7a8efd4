"""Environments that raise, hang, crash, grow, never end, or return what cannot be."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from es_queue.config.recipes import resolve
from es_queue.config.run_config import RunConfig
from es_queue.environments.episode_rules import DEFAULT_LIMIT
from es_queue.protocol.store import MAX_ERRORS
from es_queue.slots import FAILURES, MOST_FAILURES, training_plan
from es_queue.strategies import make_strategy
from tests.faults import worlds
from tests.faults.scenario import Arena, Row, Stopwatch, finish, scenario
from tests.integration.processes import CARTPOLE, NERVOUS, Seen, state_of, wait_for

TRAPPED: dict[str, Any] = {**CARTPOLE, "env": "worlds:Trapped-v0", "generations": 40}
HERE = "tests.faults.worlds"


def laid_out(arena: Arena) -> Path:
    """The environments where masters and workers of the arena find them; the folder of
    their traps.
    """
    shutil.copy(worlds.__file__, arena.folder / "worlds.py")
    return arena.folder


def reports(seen: Seen) -> list[dict[str, Any]]:
    """What workers have told of their episodes, oldest first."""
    return [json.loads(one) for one in seen.client.lrange(seen.keys.errors, 0, -1)]


# --- once: another attempt is enough


@scenario("environment raises once (tried again elsewhere)", quick=2, full=10, slow=False)
def raises_once(arena: Arena, count: int) -> Row:
    folder, values = laid_out(arena), {**TRAPPED, "generations": 20 + 20 * count}
    row, url = Row("", injected=count), arena.server()
    master, seen = arena.started("raises", url, values)
    parents = [arena.processes.worker(url, clocks=NERVOUS) for _ in range(2)]
    seats = {seen.joined(one) for one in parents}
    for number in range(count):
        row.seconds.append(
            spring(folder, "raise", lambda number=number: len(reports(seen)) > number)
        )  # type: ignore[misc]
        wait_for(
            seen.has_reached(seen.generation() + 1),
            "the next generation: three failures of one slot would decide",
        )
    assert seats == set(seen.workers()), "no worker lost its seat"
    finish(row, master, {**CARTPOLE, "generations": values["generations"]})
    told = reports(seen)
    row.noticed = sum(
        "the motor burnt" in one["reason"] and "step" in one["trace"] and one["seed"] >= 0
        for one in told
    )
    failed = sum(int(one["failed"]) for one in master.events("generation"))
    assert (len(told), failed) == (count, 0), [one["slot"] for one in told]
    return row


def spring(folder: Path, name: str, noticed: Any) -> float:
    """Lay a trap and wait until somebody has sprung it and the run has noticed; the seconds
    between.
    """
    trap = folder / f"trap-{name}"
    trap.touch()
    wait_for(lambda: not trap.exists(), f"the trap {name} is sprung")
    watch = Stopwatch()
    wait_for(noticed, f"the fault {name} is noticed")
    return watch.seconds()


@scenario(
    "environment hangs once (the process ends at the wall limit)", quick=1, full=5, slow=False
)
def hangs_once(arena: Arena, count: int) -> Row:
    folder, values = laid_out(arena), {**TRAPPED, "wall_limit": 1, "generations": 40 + 40 * count}
    row, url = Row("", injected=count), arena.server()
    master, seen = arena.started("hangs", url, values)
    parents = [arena.processes.worker(url, clocks=NERVOUS) for _ in range(2)]
    for one in parents:
        seen.joined(one)
    for number in range(count):
        row.seconds.append(
            spring(folder, "hang", lambda number=number: len(reports(seen)) > number)
        )  # type: ignore[misc]
    finish(row, master, {**CARTPOLE, "generations": values["generations"]})
    row.noticed = sum(
        "longer than 1 s" in one["reason"]
        and "in step" in one["trace"]
        and {"seed", "slot", "generation"} <= set(one)
        for one in reports(seen)
    )
    assert all(state_of(one.pid) not in ("", "Z") for one in parents), "RQ's parents live on"
    return row


def traces(seen: Seen) -> int:
    """How many crashes were told with Python's traceback."""
    return sum(
        "crashed" in one["reason"]
        and "Segmentation fault" in one["trace"]
        and "worlds.py" in one["trace"]
        for one in reports(seen)
    )


@scenario(
    "environment uses too much memory (the worker leaves above --worker-memory)", quick=2, full=5
)
def eats_memory(arena: Arena, count: int) -> Row:
    eaten = 300 if count < 5 else 2000
    folder = laid_out(arena)
    values = {
        **TRAPPED,
        "env_arg": f"megabytes={eaten}",
        "worker_memory": 250,
        "generations": 40 + 40 * count,
    }
    row, url = Row("", injected=count), arena.server()
    master, seen = arena.started("eats", url, values)
    parent = arena.processes.worker(url, clocks=NERVOUS)
    seen.joined(parent)
    for number in range(count):
        seat = wait_for(lambda: seen.seat_of(parent), "the worker has a seat")
        row.seconds.append(
            spring(folder, "eat", lambda seat=seat: seen.seat_of(parent) not in ("", seat))
        )  # type: ignore[misc]
        assert held(seen.horse(seen.seat_of(parent))) < 250 and number < count
    finish(row, master, {**CARTPOLE, "generations": values["generations"]})
    row.noticed = sum("more than --worker-memory 250" in one["reason"] for one in reports(seen))
    last = master.events("generation")[-1]
    assert last["recovered"] == last["lost_steps"] == 0, "it left in order"
    row.remark = f"{eaten} MB each; their results counted, no worker died"
    return row


def held(pid: int) -> float:
    """Megabytes that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


# --- always: the stated policy


@scenario(
    "environment raises, returns a wrong shape, NaN or Inf for some seeds (scored worst)",
    quick=8,
    full=40,
    slow=False,
)
def poisoned_training(arena: Arena, count: int) -> Row:
    laid_out(arena)
    values = {
        **CARTPOLE,
        "env": "worlds:Poisoned-v0",
        "population": 16,
        "generations": count,
        "block": 2,
    }
    poisoned = hopeless_slots(values)
    row, url = Row("", injected=sum(poisoned.values())), arena.server()
    master, seen = arena.started("poisoned", url, values)
    parents = [arena.processes.worker(url, clocks=NERVOUS) for _ in range(2)]
    seats = {seen.joined(one) for one in parents}
    finish(row, master, {**values, "env": f"{HERE}:Poisoned-v0"})
    row.lost = 0  # a slot that fails everywhere has an answer: the worst
    records = master.events("generation")
    row.noticed = sum(int(one["failed"]) for one in records)
    # The centre has a slot 0 of its own, with the seed of training's.
    attempts = Counter((one["generation"], one["kind"], one["slot"]) for one in reports(seen))
    assert min(attempts.values()) >= FAILURES or attempts.total() >= MAX_ERRORS
    assert max(attempts.values()) <= 2 * MOST_FAILURES, (
        f"a poisoned slot was tried {max(attempts.values())} times"
    )
    assert records[-1]["recovered"] == 0 and len(seats) == 2 and not seen.failed_jobs()
    row.remark = (
        f"{', '.join(f'{kind} {number}' for kind, number in sorted(poisoned.items()))}; at most "
        f"{max(attempts.values())} attempts per slot"
    )
    return row


def hopeless_slots(values: dict[str, Any]) -> Counter[str]:
    """How many slots of training are poisoned in each way, the centre's among them: it has slot 0's
    seed.
    """
    config = resolve({**values, "env": f"{HERE}:Poisoned-v0"})
    found: Counter[str] = Counter()
    for generation in range(values["generations"]):
        seeds = seeds_of(config, generation)
        evils = [worlds.poison_of("all", int(seed)) for seed in (*seeds, seeds[0])]
        found.update(evil for evil in evils if evil)
    return found


def seeds_of(config: RunConfig, generation: int) -> list[int]:
    """The first environment seed of each training slot."""
    slots = training_plan(config, make_strategy(config, 5), generation, config.population // 2)
    seeds: list[int] = slots.seeds[:, 0, 0].tolist()
    return seeds


@scenario("environment never ends and has no limit", quick=1, full=1)
def never_ends(arena: Arena, count: int) -> Row:
    """Training stops at the step limit of 10,000 that holds where nobody has set one; evaluations
    at their own.
    """
    laid_out(arena)
    values = {
        **CARTPOLE,
        "env": "worlds:Endless-v0",
        "step_limit": "env",
        "eval_step_limit": 60,
        "generations": count,
        "population": 4,
    }
    row, url = Row("", injected=count * values["population"]), arena.server()
    master, _ = arena.started("endless", url, values)
    arena.processes.worker(url, clocks=NERVOUS)
    finish(row, master, {**values, "env": f"{HERE}:Endless-v0"})
    trained = [one for one in master.events("generation") if one["population"]]
    row.noticed = sum(
        one["episodes_generation"] for one in trained if one["length_mean"] == DEFAULT_LIMIT
    )
    return row


@scenario(
    "environment crashes before a worker has joined (the run stops with one sentence)",
    quick=1,
    full=1,
)
def crashes_at_once(arena: Arena, count: int) -> Row:
    laid_out(arena)
    row, url = Row("", injected=count), arena.server()
    workers = [arena.processes.worker(url, clocks=NERVOUS) for _ in range(4)]
    for number in range(count):
        watch = Stopwatch()
        master, seen = arena.started(
            f"unborn-{number}",
            url,
            {**CARTPOLE, "env": "worlds:Poisoned-v0", "env_arg": "poison=at-once"},
        )
        assert master.wait(180) == 5, master.said()
        row.seconds.append(watch.seconds())
        row.noticed += (
            "seats ended without a result" in master.said() and "--errors" in master.said()
        )
        assert traces(seen)
    assert all(state_of(one.pid) not in ("", "Z") for one in workers)
    return row
