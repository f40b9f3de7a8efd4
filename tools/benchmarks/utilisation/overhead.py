"""What es-queue costs beside the episodes: CPU seconds of bare loops ÷ those of the whole run, for
the same steps.

The whole: es-master, its private server and two workers, over the same ten
generations each time; user and system seconds of all its processes between the ends of two
generations, so start-up is in neither side.
Bare: two processes that play the slots that counted in those generations (training, centre and
evaluation), with the worker's own player, at the same time, each half of the blocks.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgpack
import numpy as np

from es_queue.numerics.noise_table import NoiseTable
from master.loop.blocks import BlockCutter
from master.run.setup import prepare_run
from tools.benchmarks.figures import Row, middle
from tools.benchmarks.runs import (
    HOUSE,
    WORKERS,
    Bench,
    Record,
    fork,
    processes_of,
    published,
    resumed,
    states,
)

GENERATIONS, QUICK_GENERATIONS = 10, 2
TARGETS = {"lean": 0.95, "envpool": 0.92}
TEXT = "CPU-seconds per counted step, bare loops ÷ whole run, {}"


@dataclass(frozen=True)
class Work:
    """The generations first to last of a fork: what bare loops play of them, a file for each
    process, and how many steps that are.
    """

    parts: list[Path]
    steps: int
    first: int
    last: int


@dataclass
class Part:
    """What one bare process plays. published: header and parameters by publication"""

    published: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Took:
    """CPU and wall seconds for a number of steps; cpu by role for a whole run."""

    cpu: float
    wall: float
    steps: int
    roles: dict[str, float] = field(default_factory=dict)


def measured(bench: Bench, backend: str) -> list[Row]:
    """Pairs of a bare and a whole measurement, each first in turn."""
    work = recorded(bench, backend)
    measures: dict[str, Callable[[], Took]] = {
        "bare": lambda: bare(work.parts),
        "whole": lambda: whole(bench, backend, work),
    }
    found: dict[str, list[Took]] = {name: [] for name in measures}
    for number in range(bench.repeats):
        for name in list(measures)[:: 1 if number % 2 else -1]:
            found[name].append(measures[name]())
    ratios = [
        one.cpu / one.steps / (other.cpu / other.steps)
        for one, other in zip(found["bare"], found["whole"], strict=True)
    ]
    equal = all(one.steps == work.steps for both in found.values() for one in both)
    return [
        Row(
            f"whole-{backend}",
            TEXT.format(backend),
            tuple(ratios),
            target=TARGETS[backend],
            beside=beside(found, equal, work),
        )
    ]


def beside(found: dict[str, list[Took]], equal: bool, work: Work) -> dict[str, str]:
    rate = {name: middle([one.steps / one.cpu for one in all_of]) for name, all_of in found.items()}
    cpu = statistics.median(one.cpu for one in found["whole"])
    shares = {
        name: statistics.median(one.roles.get(name, 0.0) for one in found["whole"]) / cpu
        for name in ("master", "server", "wrapper", "other")
    }
    return {
        "steps per CPU-second": f"bare {rate['bare']}, whole {rate['whole']}",
        "steps per second": (
            f"bare {middle([one.steps / one.wall for one in found['bare']])}, whole "
            f"{middle([one.steps / one.wall for one in found['whole']])}"
        ),
        "of the whole's CPU": ", ".join(
            f"{name} {100 * share:.2f} %" for name, share in shares.items() if share
        ),
        "the same steps on both sides": (
            f"{'yes' if equal else 'NO'}, {work.steps:,} in {work.last - work.first + 1} "
            "generations"
        ),
    }


def recorded(bench: Bench, backend: str) -> Work:
    """The generations recorded, once for all measurements."""
    if backend not in bench.known:
        bench.known[backend] = recording_of(bench, backend)
    work: Work = bench.known[backend]
    return work


def recording_of(bench: Bench, backend: str) -> Work:
    first = bench.start[1].generation + 2  # workers have joined and are measured by then
    last = first + (QUICK_GENERATIONS if bench.quick else GENERATIONS) - 1
    run_dir = fork(bench, f"recorded-{backend}", backend=backend)
    with processes_of(bench) as processes:
        run = resumed(bench, processes, run_dir)
        run.record(last)
        records = [one for one in run.metrics() if first - 1 <= one["generation"] <= last]
        run.stop()
    counted = {one["generation"]: one["population"] for one in records[1:]}
    known, parts = states(run_dir, bench), [Part() for _ in range(WORKERS)]
    config = known[first][0]
    table = NoiseTable.open(config.noise_size, bench.noise)
    for number, individuals in counted.items():
        config, state = known[number]
        setup = prepare_run(config, table=table)
        task, vector, slots = published(setup, state, individuals)
        cut = BlockCutter(setup.learner).cut(slots, np.arange(len(slots)), WORKERS)
        for at, block in enumerate(cut):
            part = parts[at % WORKERS]
            part.published[task.publication] = (task.encode(), vector.astype("<f4").tobytes())
            part.blocks.append(str(block))
    common = {"config": config.to_json(), "noise": str(bench.noise)}
    paths = [run_dir.parent / f"part-{at}" for at in range(WORKERS)]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(msgpack.packb({**common, **asdict(part)}))
    return Work(paths, steps_played(records, first, last), first, last)


def steps_played(records: Sequence[Record], first: int, last: int) -> int:
    """Environment steps that count in those generations: training, centre and evaluation."""
    totals = {one["generation"]: one["env_steps"] + one["eval_steps"] for one in records}
    return int(totals[last] - totals[first - 1])


def bare(parts: Sequence[Path]) -> Took:
    """All parts at the same time, a process each, from when every one of them is ready."""
    command = (sys.executable, "-m", "tools.benchmarks.micro.bare_worker")
    players = [
        subprocess.Popen(
            [*command, path], cwd=HOUSE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for path in parts
    ]
    try:
        for one in players:
            assert one.stdout and one.stdout.readline() == "ready\n", "a bare process did not start"
        for one in players:
            assert one.stdin
            one.stdin.write("go\n")
            one.stdin.flush()
        ended = [json.loads(one.stdout.readline()) for one in players if one.stdout]
    finally:
        for one in players:
            one.kill()
            one.communicate()
    return Took(
        sum(one["cpu"] for one in ended),
        max(one["wall"] for one in ended),
        sum(one["steps"] for one in ended),
    )


def whole(bench: Bench, backend: str, work: Work) -> Took:
    """The same generations by a whole run."""
    with processes_of(bench) as processes:
        run = resumed(bench, processes, fork(bench, f"whole-{backend}", backend=backend))
        run.record(work.first - 1)
        began, before = time.perf_counter(), run.cpu()
        run.record(work.last)
        wall, after = time.perf_counter() - began, run.cpu()
        steps = steps_played(run.records, work.first, work.last)
        run.stop()
    roles = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    return Took(sum(roles.values()), wall, steps, roles)
