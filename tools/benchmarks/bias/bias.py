"""Which episodes count: first arrivals, the synchronous and the asynchronous schedule, beside the
truth.

CartPole's return is its length, and here its wall time too (``paced_cartpole``), so whoever drops
what comes late drops what is good. Half-trained parameters are never changed (a learning rate of
1e-30), so every generation draws from one and the same population, whose mean return is known from
a large sample of its own. Real master, real server, real RQ workers: ``python -m
tools.benchmarks.bias.bias``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from es_queue.numerics.fingerprint import fix_numeric_environment

fix_numeric_environment()

import numpy as np  # noqa: E402

from es_queue.config.run_config import RunConfig  # noqa: E402
from es_queue.numerics.noise_table import NoiseTable  # noqa: E402
from es_queue.protocol.messages import TRAIN, Block, Task  # noqa: E402
from es_queue.protocol.timing import Clocks  # noqa: E402
from es_queue.security.user_code import ALLOW  # noqa: E402
from master.run.setup import prepare_run  # noqa: E402
from master.run.warm_start import make_warm_state  # noqa: E402
from tests.integration.processes import Processes  # noqa: E402
from tools.benchmarks.charts.bar_chart import Bar, drawing  # noqa: E402
from workers.episode import EpisodeControl  # noqa: E402
from workers.join import join  # noqa: E402

FIRST, SYNC, ASYNC = "first arrivals", "sync", "async"
VARIANTS = {
    FIRST: ("tools.benchmarks.bias.first_arrivals", "async"),
    SYNC: ("master.cli.main", "sync"),
    ASYNC: ("master.cli.main", "async"),
}
ENV, NOISE, SEED, SIGMA = "CartPole-v1", 2**18, 5, 0.1
#: Of the runs: each measurement is made once with each.
SEEDS = (7, 8, 9)
#: Generations that are trained first: episodes of all lengths come of these parameters.
TRAINED = 2
WORKERS = 16
POPULATIONS = (32, 64, 256)
#: Counted individuals of each run, about. The first batches, in which workers arrive, are left out.
INDIVIDUALS, LEFT_OUT = 8192, 3
TRUTH_PAIRS = 50_000
HOUSE = Path(__file__).resolve().parents[3]
STARTER = (
    "--strategy",
    "openai_es",
    "--optimizer",
    "sgd",
    "--no-obs-norm",
    "--noise-size",
    NOISE,
    "--eval-every",
    0,
    "--final-episodes",
    0,
    "--target-reward",
    "none",
)


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error."""

    name: str
    population: int
    mean: float
    error: float
    batches: int = 0
    seconds: float = 0.0


def mean_of(name: str, population: int, values: Sequence[float], seconds: float = 0.0) -> Mean:
    """Of the means of batches, or of pairs; neighbouring batches of a schedule may share what was
    under way, so they are taken four by four.
    """
    groups = [
        statistics.fmean(values[at : at + 4]) for at in range(0, len(values) - len(values) % 4, 4)
    ] or list(values)
    return Mean(
        name,
        population,
        statistics.fmean(values),
        statistics.stdev(groups) / len(groups) ** 0.5,
        len(values),
        seconds,
    )


def trained(folder: Path) -> Path:
    """A checkpoint of half-trained parameters."""
    words = [
        "--env",
        ENV,
        "--seed",
        SEED,
        *STARTER,
        "--population",
        64,
        "--generations",
        TRAINED,
        "--workers",
        2,
        "--run-dir",
        folder / "trained",
        "--quiet",
    ]
    subprocess.run(
        [sys.executable, "-m", "master.cli.main", *map(str, words)],
        check=True,
        cwd=HOUSE,
        stdout=subprocess.DEVNULL,
    )
    return folder / "trained"


def truth(checkpoint: Path, pairs: int = TRUTH_PAIRS) -> tuple[Mean, dict[str, float]]:
    """The population's mean return, from pairs that no run plays; and how the returns are
    spread.
    """
    config = RunConfig(
        env=ENV,
        seed=SEED + 1,
        strategy="openai_es",
        optimizer="sgd",
        obs_norm=False,
        sigma=SIGMA,
        noise_size=NOISE,
        population=2 * pairs,
        eval_every=0,
    )
    table = NoiseTable.in_memory(NOISE)
    setup = prepare_run(config, table=table)
    vector = setup.strategy.published(make_warm_state(setup, checkpoint).strategy)
    evaluator = join(setup.config, EpisodeControl(), table=table).evaluator
    zeros = np.zeros(setup.spec.observation_size, "<f4").tobytes()
    task = Task(
        "0.1-00000000",
        SIGMA,
        setup.spec.step_limit or 0,
        len(vector),
        "0" * 32,
        zeros,
        zeros,
        table.digest,
        1.0,
    )
    returns: list[tuple[float, ...]] = []
    for start in range(0, pairs, 1000):
        answer = evaluator.evaluate(
            task,
            vector,
            Block(task.publication, TRAIN, start, min(pairs, start + 1000)),
            "truth",
            print,
        )
        returns += [one.returns for one in answer.results]
    found = np.array(returns)
    quantiles = {
        f"{100 * share:g} %": float(np.quantile(found, share))
        for share in (0.1, 0.25, 0.5, 0.75, 0.9)
    }
    return Mean(
        "truth", 2 * pairs, float(found.mean()), float(found.mean(axis=1).std() / pairs**0.5), pairs
    ), quantiles


def counted(
    name: str, seed: int, checkpoint: Path, folder: Path, population: int, batches: int
) -> Mean:
    """The mean return of what counts under a schedule, over so many batches."""
    module, schedule = VARIANTS[name]
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    processes = Processes(run_dir.parent, {"PYTHONPATH": str(HOUSE), ALLOW: "installed,tests"})
    processes.environment["ES_QUEUE_CLOCKS"] = json.dumps(asdict(Clocks()))
    words = [
        "--env",
        ENV,
        "--wrapper",
        "tools.benchmarks.bias.paced_cartpole:Paced",
        "--seed",
        seed,
        *STARTER,
        "--sigma",
        SIGMA,
        "--learning-rate",
        1e-30,
        "--schedule",
        schedule,
    ]
    words += [
        "--population",
        population,
        "--generations",
        LEFT_OUT + batches,
        "--workers",
        WORKERS,
        "--block",
        1,
        "--warm-start",
        checkpoint,
        "--run-dir",
        run_dir,
        "--quiet",
    ]
    try:
        process = processes.start(sys.executable, "-m", module, *words)
        if process.wait(1200):
            raise RuntimeError(process.said()[-2000:])
    finally:
        processes.end()
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    if len({record["digest"] for record in records}) != 1:
        raise RuntimeError("the parameters have changed: the population is not one")
    kept = [
        record
        for record in records
        if record["generation"] >= LEFT_OUT and record.get("return_mean") is not None
    ]
    return mean_of(
        name,
        population,
        [record["return_mean"] for record in kept],
        records[-1]["seconds"] - records[LEFT_OUT - 1]["seconds"],
    )


def together(runs: Sequence[Mean]) -> Mean:
    """One mean of several runs with other seeds."""
    count, first = len(runs), runs[0]
    error = sum(one.error**2 for one in runs) ** 0.5 / count
    return Mean(
        first.name,
        first.population,
        statistics.fmean(one.mean for one in runs),
        error,
        sum(one.batches for one in runs),
        sum(one.seconds for one in runs),
    )


def rows(known: dict[str, Any]) -> list[Mean]:
    """A row for each population and schedule, of all its runs."""
    runs = [Mean(**value) for key, value in known.items() if key not in ("truth", "spread")]
    kinds = sorted({(one.population, list(VARIANTS).index(one.name)) for one in runs})
    return [
        together(
            [
                one
                for one in runs
                if (one.population, one.name) == (population, list(VARIANTS)[place])
            ]
        )
        for population, place in kinds
    ]


def picture(rows: Sequence[Mean], of: Mean) -> str:
    """A panel for each population, a bar for each schedule, the truth as a line through all of
    them.
    """
    bars = [Bar(f"population {one.population}", one.name, one.mean, 2 * one.error) for one in rows]
    title = (
        f"Mean return of what counts, {WORKERS} workers, CartPole at one pace a step, parameters "
        "unchanged"
    )
    return drawing(
        bars,
        title,
        (of.mean, f"truth {of.mean:.1f}"),
        "bars are means, whiskers two standard errors",
    )


def lines(rows: Sequence[Mean], of: Mean) -> str:
    """The table in Markdown."""
    head = [
        "| population | what counts | mean return | off the truth | batches | seconds |",
        "|---|---|---|---|---|---|",
        f"| | truth, {of.population:,} other episodes | {of.mean:.1f} ± {of.error:.1f} | | | |",
    ]
    return "\n".join(
        head
        + [
            (
                f"| {one.population} | {one.name} | {one.mean:.1f} ± {one.error:.1f} | "
                f"{one.mean / of.mean - 1:+.1%} | {one.batches} | {one.seconds:.0f} |"
            )
            for one in rows
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.bias.bias",
        description="Which episodes count; figures, never asserted.",
    )
    parser.add_argument(
        "--only", choices=VARIANTS, action="append", help="of the schedules, these alone"
    )
    parser.add_argument(
        "--population", type=int, action="append", help="of the populations, these alone"
    )
    parser.add_argument("--seed", type=int, action="append", help="of the runs' seeds, these alone")
    parser.add_argument(
        "--individuals",
        type=int,
        default=INDIVIDUALS,
        help="that each run counts; 0 to measure nothing and show what is in --json",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="keep the figures; those in the file stay, the truth among them",
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw the plot there, of all figures in --json"
    )
    given = parser.parse_args()
    known: dict[str, Any] = (
        json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    )
    with tempfile.TemporaryDirectory(prefix="es-queue-bias-") as name:
        folder = Path(name)
        checkpoint = trained(folder)
        of, spread = (
            (Mean(**known["truth"]), known["spread"]) if "truth" in known else truth(checkpoint)
        )
        print(f"truth {of.mean:.2f} ± {of.error:.2f}, quantiles of the return {spread}", flush=True)
        for population in given.population or POPULATIONS:
            for variant, seed in product(
                given.only or VARIANTS, given.seed or SEEDS if given.individuals else ()
            ):
                one = counted(
                    variant, seed, checkpoint, folder, population, given.individuals // population
                )
                known[f"{population} {variant} {seed}"] = asdict(one)
                print(seed, one, flush=True)
                if given.json:
                    given.json.write_text(
                        json.dumps({**known, "truth": asdict(of), "spread": spread}, indent=1)
                    )
    found = rows(known)
    if given.svg:
        given.svg.write_text(picture(found, of))
    print(lines(found, of))


if __name__ == "__main__":
    main()
