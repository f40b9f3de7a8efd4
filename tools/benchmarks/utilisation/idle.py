"""How long workers have nothing to play at the end of a generation: two workers, 64 individuals.

A worker's idle time is that from the return of its last answer that belongs to the generation until
it has claimed its first block of the next; what it plays in between counts as idle, for it counts
nowhere else (blocks that others answered first). The share is the sum over workers ÷ (workers ×
wall time of the generation), from first claim to first claim.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tools.benchmarks.figures import Row, number
from tools.benchmarks.recording import Event, record
from tools.benchmarks.runs import WORKERS, Bench, fork

GENERATIONS, QUICK_GENERATIONS = 24, 3
#: Each is a mean over many generations.
MOST_REPEATS = 3
POPULATION = 64
TEXT = "wall time that 2 workers idle at a generation's end, 64 individuals, {}"


def measured(bench: Bench, backend: str) -> list[Row]:
    """A value a repeat: the mean over the same generations."""
    first = bench.start[1].generation + 2
    last = first + (QUICK_GENERATIONS if bench.quick else GENERATIONS) - 1
    means, found, walls, doubled = [], list[float](), list[float](), 0
    for _ in range(min(bench.repeats, MOST_REPEATS)):
        seen = record(
            bench,
            fork(bench, f"idle-{backend}", backend=backend, population=POPULATION),
            first,
            last,
        )
        shares = idle_shares(seen.events, first, last)
        means.append(100 * statistics.mean(share for share, _ in shares))
        found += [100 * share for share, _ in shares]
        walls += [wall for _, wall in shares]
        doubled += (
            seen.records[-1]["duplicate"]
            + seen.records[-1]["late"]
            - seen.records[0]["duplicate"]
            - seen.records[0]["late"]
        )
    beside = {
        "of one generation": (
            f"{number(min(found))} to {number(max(found))} %, median "
            f"{number(statistics.median(found))} %"
        ),
        "a generation": f"{number(statistics.median(walls))} s, {len(found)} of them",
        "duplicate results": str(doubled),
    }
    return [Row(f"idle-{backend}", TEXT.format(backend), tuple(means), " %", 3.0, "<", beside)]


def idle_shares(events: Sequence[Event], first: int, last: int) -> list[tuple[float, float]]:
    """(share, wall seconds) of each generation first to last. The events reach to the first claims
    of ``last + 1``.
    """
    workers = sorted({one.pid for one in events})
    claims = {generation: first_times(events, generation) for generation in range(first, last + 2)}
    answers = {
        generation: last_answers(events, generation) for generation in range(first, last + 1)
    }
    shares = []
    for generation in range(first, last + 1):
        began, ended = min(claims[generation].values()), min(claims[generation + 1].values())
        wall = ended - began
        idle = 0.0
        for worker in workers:
            until = claims[generation + 1].get(worker, ended + wall)
            idle += until - answers[generation].get(worker, began)
        shares.append((idle / (max(WORKERS, len(workers)) * wall), wall))
    return shares


def first_times(events: Sequence[Event], generation: int) -> dict[int, float]:
    """When each worker first claimed of a generation."""
    return {
        one.pid: one.time
        for one in reversed(events)
        if one.event == "claim" and one.generation == generation
    }


def last_answers(events: Sequence[Event], generation: int) -> dict[int, float]:
    """When each worker's last answer to a generation that came in time was taken."""
    return {
        one.pid: one.time
        for one in events
        if one.event == "answer" and one.fresh and one.generation == generation
    }
