"""``python -m tools.results STUDY…``: the rows of docs/results.md, from folders that ``es-master
--seeds`` left.

Every chosen policy plays the seeds of its run's final evaluation once more, in Gymnasium's
environment as ``gymnasium.make`` gives it, by nothing but ``load_policy``: whatever trained it, on
whatever back end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from es_queue.numerics.fingerprint import fix_numeric_environment

fix_numeric_environment()  # before numpy is loaded

import gymnasium  # noqa: E402

from es_queue import load_policy  # noqa: E402
from es_queue.config.parsing import config_from_json  # noqa: E402
from es_queue.environments.registry import register_bundled_ids  # noqa: E402
from es_queue.numerics.aggregates import aggregate  # noqa: E402
from es_queue.numerics.slot_plan import FINAL, evaluation_seeds  # noqa: E402

EPISODES = 100


@dataclass(frozen=True)
class Played:
    """One run: its seed, counted training steps, seconds of training, and ``EPISODES`` returns in
    stock Gymnasium.
    """

    seed: int
    env_steps: int
    seconds: float
    mean: float
    std: float
    least: float


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.results",
        description=(
            "Play the runs of studies in stock Gymnasium, and print a row of docs/results.md for "
            "each."
        ),
    )
    parser.add_argument("studies", nargs="+", type=Path, metavar="STUDY", help="folder of a study")
    parser.add_argument("--json", action="store_true", help="print every run's figures too")
    given = parser.parse_args()
    with ProcessPoolExecutor(1) as pool:  # environments print and warn; they do it elsewhere
        for study in given.studies:
            runs = list(pool.map(played, sorted(study.glob("s*/summary.json"), key=seed_of)))
            if given.json:
                print(*(json.dumps(asdict(run)) for run in runs), sep="\n")
            print(row(study.name, runs))


def seed_of(summary: Path) -> int:
    return int(summary.parent.name[1:])


def played(summary: Path) -> Played:
    """The run in the folder of ``summary``, its best policy played in stock Gymnasium."""
    folder = summary.parent
    told: dict[str, Any] = json.loads(summary.read_text())
    config = config_from_json((folder / "config.json").read_text())
    returns = stock_returns(
        config.env,
        folder / "checkpoints" / "best.npz",
        [int(seed) for seed in evaluation_seeds(config, FINAL, 0, EPISODES)],
    )
    return Played(
        config.seed,
        told["env_steps"],
        told["seconds"],
        statistics.fmean(returns),
        statistics.pstdev(returns),
        min(returns),
    )


def stock_returns(env_id: str, checkpoint: Path, seeds: list[int]) -> list[float]:
    """The return of an episode for each seed, rewards summed in float64."""
    warnings.simplefilter("ignore")
    register_bundled_ids()
    policy, env = load_policy(checkpoint), gymnasium.make(env_id)
    returns = []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns


def row(name: str, runs: list[Played]) -> str:
    """A line of the table, as Markdown."""
    found = aggregate([run.mean for run in runs])
    low, high = found.iqm_interval or (float("nan"), float("nan"))
    means = ", ".join(f"{run.mean:.1f} ± {run.std:.1f}" for run in runs)
    steps, seconds = ([getattr(run, name) for run in runs] for name in ("env_steps", "seconds"))
    return (
        f"| {name} | {len(runs)} | {means} | {found.iqm:.1f} [{low:.1f}, {high:.1f}] | "
        f"{spread(steps, 1e6, 2)} M | {spread(seconds, 1, 0)} s |"
    )


def spread(values: list[float], unit: float, digits: int) -> str:
    """Median, and in brackets the least and the greatest."""
    middle, *ends = (
        f"{value / unit:.{digits}f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({' to '.join(ends)})"


if __name__ == "__main__":
    main()
