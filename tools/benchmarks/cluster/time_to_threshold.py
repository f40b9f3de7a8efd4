"""Time to a threshold against workers, for several ``--scale``.

``python -m tools.benchmarks.cluster.time_to_threshold --train --task TASK --scales 1 4 16 --seeds
1 2 3 --folder RUNS --json FILE`` trains, and keeps what was recorded. ``--report FILE …`` writes
the tables and the figure of docs/scale.md. The recorded lengths of every
slot of each generation are played by the discrete-event simulation of the cluster.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from es_queue.config.run_config import AUTO
from es_queue.numerics.fingerprint import fix_numeric_environment
from tools.benchmarks.charts.line_chart import Line, drawing
from tools.benchmarks.cluster.live import ROOT
from tools.benchmarks.cluster.scale_table import shipped
from tools.benchmarks.cluster.simulation.discrete_events import STANDSTILL, Cluster
from tools.benchmarks.cluster.simulation.durations import Durations, Seconds

fix_numeric_environment()

WORKERS = (1, 6, 18, 60, 180, 540, 1440)
#: Seconds of the network, there and back.
DELAY = 0.0005
PAGE, FIGURE = ROOT / "docs" / "scale.md", ROOT / "docs" / "time_to_threshold.svg"
BEGIN, END = "<!-- time to threshold: begin -->\n", "<!-- time to threshold: end -->\n"


@dataclass(frozen=True)
class Task:
    """A task: flags of es-master, the evaluation to reach, and the most steps at a scale of 1."""

    flags: tuple[str, ...]
    threshold: float
    most_steps: int


TASKS = {
    "lander": Task(
        ("--env", "LunarLanderContinuous-v3", "--recipe", "snes-lander", "--eval-every", "2"),
        200.0,
        1_500_000,
    ),
    "lander-pgpe": Task(("--env", "LunarLanderContinuous-v3"), 200.0, 2_500_000),
    "walker": Task(("--env", "BipedalWalker-v2"), 300.0, 5_000_000),
    "hopper": Task(("--env", "Hopper-v5"), 2000.0, 1_500_000),
}


@dataclass(frozen=True)
class Recorded:
    """A run up to the evaluation that reached the threshold, or to its end.

    lengths: steps of each slot, by generation
    """

    task: str
    scale: float
    seed: int
    reached: bool
    lengths: list[list[int]]

    @property
    def steps(self) -> int:
        return sum(map(sum, self.lengths))

    @property
    def generations(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Replay(Durations):
    """The slots of a recorded run, at so many seconds a step."""

    lengths: tuple[tuple[int, ...], ...] = ()
    step_seconds: float = 1.0

    def slots(self, generation: int, count: int) -> Seconds:
        """float64 [count]: seconds of each slot."""
        steps = self.lengths[min(generation, len(self.lengths) - 1)]
        return np.asarray(steps[:count], np.float64) * self.step_seconds

    def mean(self) -> float:
        """Half of a slot, which the simulation takes for a pair."""
        every = [step for steps in self.lengths for step in steps]
        return self.step_seconds * sum(every) / len(every) / 2


def train(task: Task, scale: float, seed: int, backend: str, folder: Path) -> None:
    """One run, with one local worker and the record of all its generations."""
    command = [sys.executable, "-m", "master.cli.main", *task.flags, "--backend", backend]
    command += ["--target-reward", f"{task.threshold:g}", "--scale", f"{scale:g}"]
    command += ["--seed", str(seed), "--workers", "1", "--keep-generations", "100000"]
    command += [
        "--max-steps",
        str(int(task.most_steps * math.sqrt(scale))),
        "--final-episodes",
        "0",
    ]
    subprocess.run([*command, "--run-dir", str(folder)], check=True)


def read_run(task: str, folder: Path) -> Recorded:
    """What a run recorded, up to the evaluation at the threshold that fresh episodes confirmed."""
    config = json.loads((folder / "config.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    passed = [
        int(record["generation"])
        for record in records
        if (record.get("confirm_mean") or -math.inf) >= TASKS[task].threshold
    ]
    paths = sorted((folder / "slots").glob("*.npz"), key=lambda path: int(path.stem))
    last = passed[0] if passed else len(paths)
    lengths = [slot_lengths(path) for path in paths if int(path.stem) < last]
    return Recorded(task, config.get("scale", 1.0), config["seed"], bool(passed), lengths)


def slot_lengths(path: Path) -> list[int]:
    """Steps of each slot of a generation."""
    with np.load(path, allow_pickle=False) as arrays:
        total = np.bincount(arrays["slot"], weights=arrays["length"])
    return [int(steps) for steps in total]


def seconds_to_threshold(run: Recorded, workers: int, step_seconds: float) -> float:
    """Modelled seconds of a run's generations on so many workers."""
    lengths = tuple(map(tuple, run.lengths))
    work = [step_seconds * sum(steps) for steps in lengths]
    if max(work) / workers > STANDSTILL / 2:  # nothing but episodes matters, and the model stops
        longest = [step_seconds * max(steps) for steps in lengths]
        return sum(max(one / workers, most) for one, most in zip(work, longest, strict=True))
    durations = Replay(lengths=lengths, step_seconds=step_seconds)
    cluster = Cluster(workers, durations, 2 * len(lengths[0]), shipped(), delay=DELAY)
    cluster.run(len(lengths))
    return cluster.spans[-1][1] - cluster.spans[0][0]


def table(runs: Sequence[Recorded], step_seconds: float) -> dict[float, list[tuple[int, float]]]:
    """By scale, the median seconds of its seeds that reached the threshold for each number of
    workers.
    """
    reached = [run for run in runs if run.reached]
    return {
        scale: [
            (
                workers,
                median(
                    seconds_to_threshold(run, workers, step_seconds)
                    for run in reached
                    if run.scale == scale
                ),
            )
            for workers in WORKERS
        ]
        for scale in sorted({run.scale for run in reached})
    }


def page(runs: Sequence[Recorded], figures: dict[float, list[tuple[int, float]]]) -> str:
    """Markdown of one task: each seed's generations and steps, then the median time by workers and
    scale; the best of a row is bold.
    """
    lines = ["| scale | seeds | generations | steps |", "|---|---|---|---|"]
    for scale in sorted({run.scale for run in runs}):
        ends = sorted((run for run in runs if run.scale == scale), key=lambda run: run.seed)
        cells = (
            ", ".join(str(run.seed) for run in ends),
            ", ".join(f"{run.generations}{'' if run.reached else ' (not)'}" for run in ends),
            ", ".join(f"{run.steps:,}" for run in ends),
        )
        lines.append(f"| {scale:g} | {' | '.join(cells)} |")
    head = " | ".join(f"`--scale {scale:g}`" for scale in figures)
    lines += ["", f"| workers | {head} |", "|---" * (1 + len(figures)) + "|"]
    for place, workers in enumerate(WORKERS):
        row = [points[place][1] for points in figures.values()]
        times = [f"**{one:,.1f} s**" if one == min(row) else f"{one:,.1f} s" for one in row]
        lines.append(f"| {workers:,} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"


def write_report(runs: Sequence[Recorded], step_seconds: float) -> None:
    """The figure, and the tables of each task between the two marks of docs/scale.md."""
    lines, tables = [], []
    for task in sorted({run.task for run in runs}):
        ran = [run for run in runs if run.task == task]
        figures = table(ran, step_seconds)
        words = TASKS[task].flags
        tables.append(
            f"`es-master {' '.join(words)} --target-reward {TASKS[task].threshold:g}`:\n\n"
            f"{page(ran, figures)}"
        )
        lines += [
            Line(f"{task}, scale {scale:g}", points, task) for scale, points in figures.items()
        ]
    title = f"Modelled time to the threshold, {1000 * step_seconds:g} ms per step"
    FIGURE.write_text(drawing(lines, title, WORKERS, ("workers", "seconds")))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    text = "\n".join(tables)
    PAGE.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.cluster.time_to_threshold")
    parser.add_argument("--task", choices=TASKS, default="lander")
    parser.add_argument("--train", action="store_true", help="train at --scales with --seeds")
    parser.add_argument("--scales", type=float, nargs="+", default=[1.0, 4.0, 16.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--backend", default=AUTO, help="of the environment, in training")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="of the runs")
    parser.add_argument("--step-seconds", type=float, default=0.005, help="of the report")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write there what was recorded")
    parser.add_argument(
        "--report", type=Path, nargs="+", metavar="FILE", help="from what --json kept of each task"
    )
    return parser.parse_args()


def main() -> None:
    given = parsed()
    wanted = [
        (scale, seed, given.folder / f"{given.task}-{scale:g}-{seed}")
        for scale in given.scales
        for seed in given.seeds
    ]
    if given.train:
        for scale, seed, folder in wanted:
            train(TASKS[given.task], scale, seed, given.backend, folder)
    if given.json:
        runs = [read_run(given.task, folder) for _, _, folder in wanted if folder.is_dir()]
        given.json.write_text(json.dumps([asdict(run) for run in runs]))
    if given.report:
        kept: list[dict[str, Any]] = [
            run for path in given.report for run in json.loads(path.read_text())
        ]
        write_report([Recorded(**run) for run in kept], given.step_seconds)


if __name__ == "__main__":
    main()
