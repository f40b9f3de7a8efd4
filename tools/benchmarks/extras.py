"""What evaluation, statistics, metrics and checkpoints cost together, as a share of a generation;
episodes apart.

Two parts, added up. In the master: wall seconds of encoding and writing checkpoints and the replay
log, of records, progress and metrics.jsonl, of merging statistics, of judging evaluations; all
stand between two generations, where the workers wait. In the workers: gathering the moments of
observations, as the share of CPU seconds that bare loops need more with it than without, over the
same episodes. The episodes of evaluations are episodes: their share of all steps stands beside.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import msgpack

from es_queue.config.parsing import config_from_json
from tools.benchmarks.figures import Row, number
from tools.benchmarks.runs import Bench, Record, fork, processes_of, resumed
from tools.benchmarks.timed_master import FILE
from tools.benchmarks.utilisation.overhead import Work, bare, recorded

GENERATIONS, QUICK_GENERATIONS = 20, 2
TEXT = "extra cost of evaluation, statistics, metrics, checkpoints together, of a generation"


def measured(bench: Bench) -> list[Row]:
    work = recorded(bench, "lean")
    statistics_shares = [100 * share for share in moments_shares(bench, work)]
    groups, records = master_seconds(bench)
    walls = [
        float(one["seconds_publish"] + one["seconds_wait"] + one["seconds_update"])
        for one in records
    ]
    count, wall = len(records) - 1, sum(walls[1:])
    shares = {name: 100 * seconds / wall for name, seconds in groups.items()}
    totals = [share + sum(shares.values()) for share in statistics_shares]
    played = {name: records[-1][name] - records[0][name] for name in ("env_steps", "eval_steps")}
    beside = {
        "in the master": ", ".join(
            f"{name} {1000 * groups[name] / count:.2f} ms ({number(share)} %)"
            for name, share in shares.items()
        ),
        "in the workers": (
            f"statistics {number(statistics.median(statistics_shares))} % "
            f"({number(min(statistics_shares))} to {number(max(statistics_shares))})"
        ),
        "a generation": f"{number(wall / count)} s, {count} of them",
        "steps of evaluations and of the centre": (
            f"{100 * played['eval_steps'] / sum(played.values()):.1f} % of all"
        ),
        "publish, update": ", ".join(
            f"{1000 * statistics.median(float(one[name]) for one in records):.1f} ms"
            for name in ("seconds_publish", "seconds_update")
        ),
    }
    return [Row("extras", TEXT, tuple(totals), " %", 2.0, "<", beside)]


def master_seconds(bench: Bench) -> tuple[dict[str, float], list[Record]]:
    """Seconds by group over the generations after the first of the records."""
    first = bench.start[1].generation + 2
    last = first + (QUICK_GENERATIONS if bench.quick else GENERATIONS)
    path = bench.fresh("times") / "times.jsonl"
    with processes_of(bench) as processes:
        run = resumed(
            bench,
            processes,
            fork(bench, "extras", backend="lean"),
            module="tools.benchmarks.timed_master",
            **{FILE: str(path)},
        )
        run.record(last)
        records = [one for one in run.metrics() if first <= one["generation"] <= last]
        run.stop()
    times = {one["generation"]: one for one in map(json.loads, path.read_text().splitlines())}
    before, after = times[first], times[last]
    return {
        name: after[name] - before.get(name, 0.0) for name in after if name != "generation"
    }, records


def moments_shares(bench: Bench, work: Work) -> list[float]:
    """Of each repeat: the CPU seconds that gathering moments takes ÷ those of the
    episodes with it.
    """
    without = [unobserved(path) for path in work.parts]
    shares = []
    for number_of in range(bench.repeats):
        pair = {False: 0.0, True: 0.0}
        for observed in (True, False) if number_of % 2 else (False, True):
            pair[observed] = bare(work.parts if observed else without).cpu
        shares.append((pair[True] - pair[False]) / pair[True])
    return shares


def unobserved(path: Path) -> Path:
    """The same work without moments of any slot but the first, which always has them."""
    work = msgpack.unpackb(path.read_bytes())
    work["config"] = replace(config_from_json(work["config"].encode()), obs_sample=0.0).to_json()
    other = path.with_name(f"{path.name}-unobserved")
    other.write_bytes(msgpack.packb(work))
    return other
